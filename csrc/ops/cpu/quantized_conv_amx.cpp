#include <ATen/Parallel.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/cpu/kernels/conv_amx.h"
#include "ops/cpu/quantized_conv_phase.h"
#include "ops/cpu/thread_scratch.h"

#if defined(HORIZON_HAVE_AVX512)

namespace horizon::ops {
namespace {

using cpu::avx512::kPanel;
using cpu::avx512::TileConv;
using cpu::avx512::TileDepth;
using cpu::avx512::TilePair;

constexpr int64_t kTileRows = 16;
constexpr int64_t kWord = 4;
// What stays in the second cache beside the other, in bytes.
constexpr int64_t kNearCodes = 512 * 1024;
constexpr int64_t kNearWeights = 1024 * 1024;

/// Where tiles of codes are read.
enum class Source {
  kImage,    ///< in the image
  kPadded,   ///< in a copy of some of its rows with their borders
  kGathered  ///< in a matrix with a row for each output position
};

int64_t divided_up(int64_t value, int64_t step) { return (value + step - 1) / step; }

/// A layer as products of tiles.
struct Plan {
  const ConvProblem& p;
  const Phase& phase;
  const ConvOutput& output;
  cpu::GatherGeometry g;
  int64_t packed_words;                  ///< of a row of weights
  int64_t low_y, high_y, low_x, high_x;  ///< of the taps

  Source source = Source::kGathered;
  TileDepth depth{};
  std::vector<int64_t> step_offset;
  int64_t pitch = 0;      ///< pixels from one row of the (padded) image to the next
  int64_t border = 0;     ///< pixels before each row of the padded image
  int64_t row_bytes = 0;  ///< from one row of a tile to the next
  bool flat = false;      ///< tiles run on across the ends of rows, and drop what lies between
  bool across = false;    ///< and across the ends of images

  Plan(const ConvProblem& problem, const Phase& of, const ConvOutput& to)
      : p(problem), phase(of), output(to), g(phase_geometry(problem, of)) {
    g.depth = packed_depth(p.weight, WeightOrder::kDense, g.taps);
    packed_words = g.depth / kWord;
    const auto [y0, y1] = std::minmax_element(phase.tap_y.begin(), phase.tap_y.end());
    const auto [x0, x1] = std::minmax_element(phase.tap_x.begin(), phase.tap_x.end());
    low_y = *y0, high_y = *y1, low_x = *x0, high_x = *x1;
    choose();
  }

  int64_t total() const { return p.batch * g.grid_height * g.grid_width; }
  int64_t panels() const { return divided_up(p.weight.group_out, kPanel); }
  int64_t weight_bytes() const { return p.weight.group_out * g.depth; }

 private:
  /// Roughly how many cycles it takes to read weights that do not stay in the second cache, once
  /// for each part of the codes that does.
  int64_t weight_cycles(int64_t code_bytes) const {
    if (weight_bytes() <= kNearWeights) return 0;
    return divided_up(code_bytes, kNearCodes) * weight_bytes() * p.weight.groups / 16;
  }

  /// Roughly how many cycles a panel's products take in `tiles` tiles of rows.
  int64_t product_cycles(int64_t tiles, const TileDepth& by) const {
    return tiles * by.steps * kTileRows * 2 * panels() * p.weight.groups;
  }

  void choose() {
    const TileDepth whole = cpu::avx512::tile_depth(packed_words);
    const int64_t gather = total() * (g.taps / g.run * 8 + g.depth / 16) * p.weight.groups;
    const int64_t best = gather + product_cycles(divided_up(total(), kTileRows), whole) +
                         weight_cycles(total() * g.depth);
    take_gathered(whole);
    const int64_t run_bytes = g.run * g.group_channels;
    if (run_bytes % kWord != 0) return;
    // A run of taps is cut into equal tiles.
    const int64_t words = run_bytes / kWord;
    TileDepth cut = cpu::avx512::tile_depth(words);
    while (words % cut.steps != 0) ++cut.steps;
    cut.words = words / cut.steps;
    const int64_t runs = g.taps / g.run;
    cut.steps *= runs;

    const int64_t right = (g.grid_width - 1) * g.step_x + high_x - (g.width - 1);
    const bool flows = g.step_x == 1 && g.step_y == 1;
    const bool whole_image = flows && g.taps == 1 && low_y == 0 && low_x == 0 &&
                             g.grid_height == g.height && g.grid_width == g.width;
    // Of a small image more than the last tile would reach behind the last image.
    const int64_t reach = kTileRows * g.step_x + (high_y + 1) * g.width;
    const bool bordered = low_x < 0 || right > 0 || low_y < 0 ||
                          (g.grid_height - 1) * g.step_y + high_y > g.height - 1 ||
                          (!whole_image && reach > g.height * g.width);
    // One border serves as the end of its row and as the start of the next, and a row of the grid
    // is to fit between two.
    const int64_t wide =
        bordered ? std::max<int64_t>({0, -low_x, right, flows ? g.grid_width - g.width : 0}) : 0;
    const int64_t step = g.width + wide;
    if (!bordered && !flows && g.grid_width < kTileRows) return;
    const int64_t tiles = flows ? divided_up(p.batch * g.grid_height * step, kTileRows)
                                : p.batch * g.grid_height * divided_up(g.grid_width, kTileRows);
    const int64_t copied =
        bordered ? p.batch * g.grid_height * g.step_y * step * p.in_channels / 32 : 0;
    const int64_t code_bytes =
        p.batch * (g.grid_height * g.step_y + high_y - low_y) * step * p.in_channels;
    if (product_cycles(tiles, cut) + weight_cycles(code_bytes) + copied >= best) return;

    source = bordered ? Source::kPadded : Source::kImage;
    depth = cut;
    border = wide;
    pitch = step;
    row_bytes = g.step_x * p.in_channels;
    flat = flows;
    across = whole_image;
    step_offset.clear();
    for (const auto r : c10::irange(runs)) {
      const int64_t y = phase.tap_y[r * g.run] - (bordered ? low_y : 0);
      const int64_t x = phase.tap_x[r * g.run] + border;
      for (const auto s : c10::irange(cut.steps / runs)) {
        step_offset.push_back((y * pitch + x) * p.in_channels + s * cut.words * kWord);
      }
    }
  }

  void take_gathered(const TileDepth& whole) {
    depth = whole;
    g.depth = whole.steps * whole.words * kWord;
    row_bytes = g.depth;
    for (const auto s : c10::irange(whole.steps)) step_offset.push_back(s * whole.words * kWord);
  }
};

/// How a plan is cut into tasks. A unit is a number of rows of the grid or, where codes are
/// gathered, of positions.
struct Tiling {
  int64_t extent, unit, units, column_tasks;
  int64_t count(int64_t groups) const { return units * column_tasks * groups; }
};

Tiling choose_tiling(const Plan& plan) {
  constexpr int64_t kFirstCache = 40 * 1024;
  const auto& g = plan.g;
  const int64_t threads = at::get_num_threads();
  const int64_t groups = plan.p.weight.groups;
  const bool gathered = plan.source == Source::kGathered;
  const int64_t extent = gathered ? plan.total() : plan.p.batch * g.grid_height;
  // Codes stay in the second cache, gathered ones next to few weights in the first.
  const int64_t bytes = gathered ? plan.row_bytes : g.step_y * plan.pitch * plan.p.in_channels;
  const int64_t room =
      gathered && plan.weight_bytes() <= kFirstCache ? kFirstCache / 2 : kNearCodes;
  const int64_t step = gathered ? TilePair::kRows : 1;
  // So few positions that their bookkeeping stays in the first cache.
  const int64_t most_positions = 2048;
  int64_t most = std::max(step, room / std::max<int64_t>(1, bytes) / step * step);
  most = std::min(most, std::max(step, most_positions / (gathered ? 1 : g.grid_width)));
  Tiling t{extent, 0, divided_up(extent, most), 1};
  const bool wide = plan.weight_bytes() > plan.total() * plan.p.weight.group_in;
  if (groups < threads && wide && t.units < threads) {
    t.column_tasks = std::min(plan.panels(), threads);
  } else if (groups < threads && plan.total() > TilePair::kRows) {
    t.units = std::min(extent, rounded_up(t.units, threads));
  }
  t.unit = rounded_up(divided_up(extent, t.units), step);
  t.units = divided_up(extent, t.unit);
  return t;
}

/// Collects tiles and, for each row of one, where its output goes.
class Tiles {
 public:
  Tiles(const Plan& plan, TilePair* pairs) : plan_(plan), pairs_(pairs) {}

  /// A tile whose first row is position `j` of row `i` of image `n`'s grid, `pitch` positions in a
  /// row, of which `valid` from `j` on are to be looked at.
  void add(const uint8_t* codes, int64_t n, int64_t i, int64_t j, int64_t pitch, int64_t valid) {
    TilePair& pair = pairs_[count_ / 2];
    const int64_t half = count_ % 2;
    if (half == 0) {
      pair.count = 0;
      pair.tile[1] = nullptr;
    }
    pair.tile[half] = codes;
    const auto& g = plan_.g;
    if (j + kTileRows <= g.grid_width && valid >= kTileRows) {
      add_whole(pair, half, position(n, i, j));
      return;
    }
    const int64_t before = pair.count;
    for (int64_t k = 0; k < std::min(valid, kTileRows); ++k) {
      if (j < g.grid_width) {
        pair.row[pair.count] = static_cast<uint8_t>(half * kTileRows + k);
        pair.position[pair.count++] = position(n, i, j);
      }
      if (++j < pitch) continue;
      j = 0;
      if (++i < g.grid_height) continue;
      i = 0;
      ++n;
    }
    if (pair.count != before) {
      ++count_;
    } else if (half == 1) {
      pair.tile[1] = nullptr;
    }
  }

  int64_t pairs() const { return divided_up(count_, 2); }

 private:
  /// A tile within a row.
  void add_whole(TilePair& pair, int64_t half, int64_t first) {
    const int64_t step = plan_.phase.step[1] * plan_.p.weight.out_channels;
    uint8_t* row = pair.row + pair.count;
    int64_t* to = pair.position + pair.count;
    for (int64_t k = 0; k < kTileRows; ++k) {
      row[k] = static_cast<uint8_t>(half * kTileRows + k);
      to[k] = first + k * step;
    }
    pair.count += kTileRows;
    ++count_;
  }

  int64_t position(int64_t n, int64_t i, int64_t j) const {
    const auto& p = plan_.p;
    const int64_t y = plan_.phase.first[0] + i * plan_.phase.step[0];
    const int64_t x = plan_.phase.first[1] + j * plan_.phase.step[1];
    return ((n * p.out_height + y) * p.out_width + x) * p.weight.out_channels;
  }

  const Plan& plan_;
  TilePair* pairs_;
  int64_t count_ = 0;
};

/// A unit's tiles in this thread's memory.
class Unit {
 public:
  Unit(const Plan& plan, const Tiling& tiling) : plan_(plan) {
    const auto& g = plan.g;
    const int64_t channels = plan.p.in_channels;
    int64_t tiles = 0;
    if (plan.source == Source::kGathered) {
      tiles = divided_up(tiling.unit, kTileRows);
      code_bytes_ = tiles * kTileRows * plan.row_bytes + cpu::kGatherSlack;
    } else {
      // Parts of two images are two lists of tiles.
      const int64_t images = tiling.unit / g.grid_height + 2;
      tiles = plan.flat ? divided_up(tiling.unit * plan.pitch, kTileRows) + images
                        : tiling.unit * divided_up(g.grid_width, kTileRows);
      if (plan.source == Source::kPadded) {
        const int64_t rows = tiling.unit * g.step_y + images * (plan.high_y - plan.low_y + 1);
        code_bytes_ = (rows * plan.pitch + images * plan.border) * channels;
      } else {
        code_bytes_ = plan.step_offset.back();
      }
      code_bytes_ += 2 * kTileRows * plan.row_bytes + plan.depth.words * kWord;
    }
    code_bytes_ = rounded_up(code_bytes_, 64);
    const int64_t pairs = divided_up(tiles, 2) + 1;
    codes_ = thread_scratch(code_bytes_ + pairs * static_cast<int64_t>(sizeof(TilePair)));
    pairs_ = reinterpret_cast<TilePair*>(codes_ + code_bytes_);
  }

  const TilePair* pairs() const { return pairs_; }

  /// Lays the tiles of rows (or positions) [first, first + count) out, and returns how many pairs.
  int64_t fill(int64_t first, int64_t count, int64_t group) {
    Tiles tiles(plan_, pairs_);
    if (plan_.source == Source::kGathered) {
      fill_gathered(tiles, first, count, group);
      return tiles.pairs();
    }
    const int64_t height = plan_.g.grid_height;
    uint8_t* scratch = codes_;
    if (plan_.across) {
      add_piece(tiles, plan_.p.input, 0, first, count, group);
      return tiles.pairs();
    }
    for (int64_t r = first; r < first + count;) {
      const int64_t n = r / height;
      const int64_t i = r % height;
      const int64_t rows = std::min(height - i, first + count - r);
      if (plan_.source == Source::kPadded) {
        uint8_t* end = copy_rows(n, i, rows, scratch);
        add_piece(tiles, scratch, n, i, rows, group);
        scratch = end;
      } else {
        add_piece(tiles, plan_.p.input + n * image_bytes(), n, i, rows, group);
      }
      r += rows;
    }
    return tiles.pairs();
  }

 private:
  int64_t image_bytes() const { return plan_.g.height * plan_.g.width * plan_.p.in_channels; }

  void fill_gathered(Tiles& tiles, int64_t first, int64_t count, int64_t group) {
    cpu::GatherGeometry g = plan_.g;
    g.first_channel = group * g.group_channels;
    cpu::avx512::gather_codes(g, first, count, codes_);
    for (int64_t r = 0; r < count; r += kTileRows) {
      const int64_t at = first + r;
      const int64_t row = at / g.grid_width;
      tiles.add(codes_ + r * plan_.row_bytes, row / g.grid_height, row % g.grid_height,
                at % g.grid_width, g.grid_width, count - r);
    }
  }

  /// Rows [i, i + rows) of the grid of image n: the input rows that their taps read, with borders.
  uint8_t* copy_rows(int64_t n, int64_t i, int64_t rows, uint8_t* to) const {
    const auto& g = plan_.g;
    const int64_t channels = plan_.p.in_channels;
    const int64_t line = g.width * channels;
    const int64_t side = plan_.border * channels;
    const int64_t first = i * g.step_y + plan_.low_y;
    const int64_t last = (i + rows - 1) * g.step_y + plan_.high_y;
    for (int64_t y = first; y <= last; ++y) {
      std::memset(to, g.zero_point, side);
      to += side;
      if (y >= 0 && y < g.height) {
        std::memcpy(to, g.input + (n * g.height + y) * line, line);
      } else {
        std::memset(to, g.zero_point, line);
      }
      to += line;
    }
    std::memset(to, g.zero_point, side);
    return to + side;
  }

  /// Tiles of rows [i, i + rows) of image n, whose codes start at `codes`: the image's (or, with
  /// `across`, the first image's) first row, or the padded copy's.
  void add_piece(Tiles& tiles, const uint8_t* codes, int64_t n, int64_t i, int64_t rows,
                 int64_t group) {
    const auto& g = plan_.g;
    const bool padded = plan_.source == Source::kPadded;
    const int64_t line = g.step_y * plan_.pitch * plan_.p.in_channels;
    const uint8_t* start = codes + (padded ? 0 : i * line) + group * g.group_channels;
    if (plan_.flat) {
      const int64_t count = (rows - 1) * plan_.pitch + g.grid_width;
      for (int64_t f = 0; f < count; f += kTileRows) {
        int64_t image = n;
        int64_t row = i + f / plan_.pitch;
        if (plan_.across) {
          image = row / g.grid_height;
          row %= g.grid_height;
        }
        tiles.add(readable(start + f * plan_.row_bytes), image, row, f % plan_.pitch, plan_.pitch,
                  count - f);
      }
      return;
    }
    for (const auto r : c10::irange(rows)) {
      for (int64_t j = 0; j < g.grid_width; j += kTileRows) {
        tiles.add(readable(start + r * line + j * plan_.row_bytes), n, i + r, j, g.grid_width,
                  g.grid_width - j);
      }
    }
  }

  /// The tile, or a copy where its last rows lie behind the image: the last tile of all.
  const uint8_t* readable(const uint8_t* tile) const {
    if (plan_.source != Source::kImage) return tile;
    const int64_t reach =
        (kTileRows - 1) * plan_.row_bytes + plan_.step_offset.back() + plan_.depth.words * kWord;
    const int64_t there = plan_.g.input_end - tile;
    if (there >= reach) return tile;
    std::memcpy(codes_, tile, there);
    std::memset(codes_ + there, 0, reach - there);
    return codes_;
  }

  const Plan& plan_;
  int64_t code_bytes_;
  uint8_t* codes_;
  TilePair* pairs_;
};

TileConv group_conv(const Plan& plan, int64_t group) {
  const ConvOutput& output = plan.output;
  const auto& w = plan.p.weight;
  const int64_t first = group * w.group_out;
  TileConv conv{};
  conv.depth = plan.depth;
  conv.step_offset = plan.step_offset.data();
  conv.row_bytes = plan.row_bytes;
  conv.weights = plan.p.packed + plan.phase.taps->data +
                 group * packed_matrix_bytes(w, WeightOrder::kDense, *plan.phase.taps);
  conv.block_bytes = plan.packed_words * kWord * kPackedLanes;
  conv.channels = w.group_out;
  conv.epilogue = output.epilogue;
  conv.epilogue.correction = plan.phase.correction.data() + first;
  conv.epilogue.multiplier += first;
  conv.epilogue.offset += first;
  if (conv.epilogue.skip != nullptr) conv.epilogue.skip += first;
  if (output.codes != nullptr) conv.codes = output.codes + first;
  if (output.values != nullptr) conv.values = output.values + first;
  return conv;
}

}  // namespace

void run_amx(const ConvProblem& p, const Phase& phase, const ConvOutput& output) {
  const Plan plan(p, phase, output);
  constexpr const char* kNames[] = {"amx, in place", "amx, padded rows", "amx, gathered"};
  log_phase(p, phase, kNames[static_cast<int>(plan.source)]);
  const Tiling tiling = choose_tiling(plan);
  const int64_t tasks = tiling.count(p.weight.groups);
  constexpr int64_t kProductsPerCycle = 700;
  const int64_t cycles =
      plan.total() * p.weight.out_channels * (1 + plan.g.depth / kProductsPerCycle);
  at::parallel_for(0, tasks, cycles < kSerialCycles ? tasks : 1, [&](int64_t begin, int64_t end) {
    Unit unit(plan, tiling);
    for (const auto task : c10::irange(begin, end)) {
      const int64_t first = task % tiling.units * tiling.unit;
      const int64_t part = task / tiling.units % tiling.column_tasks;
      const int64_t group = task / (tiling.units * tiling.column_tasks);
      const int64_t pairs = unit.fill(first, std::min(tiling.unit, tiling.extent - first), group);
      conv_tiles(group_conv(plan, group), unit.pairs(), pairs,
                 plan.panels() * part / tiling.column_tasks,
                 plan.panels() * (part + 1) / tiling.column_tasks);
    }
  });
}

}  // namespace horizon::ops

#endif
