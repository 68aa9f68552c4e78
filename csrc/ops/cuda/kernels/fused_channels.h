#pragma once

#include <cstdint>

#include "ops/cuda/kernels/fused_elements.h"
#include "ops/cuda/launch.h"

// Reductions over all elements of a channel: each block reduces a chunk of some channels, and
// another kernel merges the chunks in order. How the work is cut depends on sizes alone.
namespace horizon::ops::cuda {

/// The cut of a reduction over `rows`. Partial results are [chunks][channels].
struct ChannelCut {
  static constexpr int kLanes = 128;        ///< neighbouring elements of a block, channels last
  static constexpr int kGroup = 4;          ///< elements of a thread side by side
  static constexpr int kDepth = 4;          ///< groups of a thread in one tile
  static constexpr int64_t kBlocks = 1024;  ///< about as many as a large device runs at once
  static constexpr int64_t kShortest = 8;   ///< tiles of a thread in the smallest chunk

  FusedRows rows;
  int64_t length = 1;  ///< channels last: elements of a row; NCHW: groups in a row
  int64_t count = 0;   ///< channels last: rows; NCHW: groups of a channel
  int64_t chunk = 1;   ///< of them in a block
  uint32_t chunks = 0;

  ChannelCut() = default;
  explicit ChannelCut(const FusedRows& r) : rows(r) {
    if (r.total == 0) return;
    int64_t in_block = 0;  // of `count`, in one tile of all threads
    if (r.per_row) {
      length = (r.length + kGroup - 1) / kGroup;
      count = r.count() / r.channels * length;
      in_block = 256 * kDepth;
    } else {
      length = lanes(r.channels);
      count = (r.total + length - 1) / length;
      in_block = 256 * kGroup / kLanes * kDepth;
    }
    const int64_t most = kBlocks / width() > 1 ? kBlocks / width() : 1;
    int64_t wanted = count / (in_block * kShortest);
    wanted = wanted < 1 ? 1 : (wanted > most ? most : wanted);
    chunk = (count + wanted - 1) / wanted;
    chunks = static_cast<uint32_t>((count + chunk - 1) / chunk);
  }

  /// Blocks side by side.
  int64_t width() const { return rows.per_row ? rows.channels : (length + kLanes - 1) / kLanes; }
  Grid grid() const { return {static_cast<uint32_t>(width()), chunks, 1}; }
  int64_t partials() const { return chunks * rows.channels; }

 private:
  /// A row holds all channels if a block has more lanes; groups start at multiples of their size.
  static int64_t lanes(int64_t channels) {
    if (channels >= kLanes) return channels;
    const int64_t step = channels % 4 == 0 ? 1 : (channels % 2 == 0 ? 2 : 4);
    const int64_t pixels = kLanes / channels;
    return channels * (pixels < step ? pixels : pixels - pixels % step);
  }
};

/// Up to kDepth groups of kGroup elements; entry [j][i] counts where `valid` says so.
struct ChannelTile {
  int64_t offset[ChannelCut::kDepth];  ///< of the first element
  int64_t valid[ChannelCut::kDepth];   ///< elements, 0 to kGroup
};

/// A reduction over channels. `Sum` is what is kept for each channel, with clear() and add(Sum).
/// `Tile` reads a tile into what one thread keeps, `Running`, with clear() and Sum sum():
///   void lanes(const ChannelTile&, int64_t channel, int64_t channels, Running out[kGroup]) const;
///   void all(const ChannelTile&, int64_t channel, Running& out) const;
/// where the elements of `lanes` belong to neighbouring channels from `channel` on (after the last
/// comes the first), and those of `all` to one.
template <typename Sum, typename Tile>
struct ReduceChannels {
  static constexpr uint32_t kThreads = 256;
  static constexpr int kPhases = 3;
  static constexpr int kGroup = ChannelCut::kGroup;
  static constexpr int kColumns = ChannelCut::kLanes / kGroup;
  static constexpr int kWalkers = static_cast<int>(kThreads) / kColumns;
  struct Shared {
    Sum sums[kThreads * kGroup];
  };
  using State = Nothing;

  ChannelCut cut;
  Tile tile;
  Sum* partials;

  HORIZON_HD void operator()(int phase, const Thread& t, State&, Shared& shared) const {
    if (cut.rows.per_row) {
      reduce_rows(phase, t, shared);
    } else {
      reduce_lanes(phase, t, shared);
    }
  }

 private:
  HORIZON_HD int64_t end_of(const Thread& t) const {
    const int64_t end = (t.block.y + int64_t{1}) * cut.chunk;
    return end < cut.count ? end : cut.count;
  }

  HORIZON_HD void reduce_lanes(int phase, const Thread& t, Shared& shared) const {
    const int64_t first = int64_t{t.block.x} * ChannelCut::kLanes;
    const int64_t left = cut.length - first;
    const int64_t lanes = left < ChannelCut::kLanes ? left : ChannelCut::kLanes;
    const int64_t channels = cut.rows.channels;
    if (phase == 0) {
      const int column = static_cast<int>(t.index) % kColumns;
      const int64_t lane = first + int64_t{column} * kGroup;
      const int64_t room = cut.length - lane;
      const int64_t channel = remainder(lane, channels);
      typename Tile::Running running[kGroup];
      for (auto& lane_sum : running) lane_sum.clear();
      const int64_t end = end_of(t);
      int64_t row = t.block.y * cut.chunk + t.index / kColumns;
      for (; row < end && room > 0; row += kWalkers * ChannelCut::kDepth) {
        ChannelTile at;
        for (int j = 0; j < ChannelCut::kDepth; ++j) {
          const int64_t r = row + j * kWalkers;
          at.offset[j] = r * cut.length + lane;
          int64_t valid = r < end ? cut.rows.total - at.offset[j] : 0;
          valid = valid < room ? valid : room;
          at.valid[j] = valid < 0 ? 0 : (valid < kGroup ? valid : kGroup);
        }
        tile.lanes(at, channel, channels, running);
      }
      for (int i = 0; i < kGroup; ++i) shared.sums[t.index * kGroup + i] = running[i].sum();
    } else if (phase == 1) {
      if (t.index >= lanes) return;
      for (int walker = 1; walker < kWalkers; ++walker) {
        shared.sums[t.index].add(shared.sums[walker * ChannelCut::kLanes + t.index]);
      }
    } else {
      if (t.index >= lanes || t.index >= channels) return;
      Sum sum = shared.sums[t.index];
      for (int64_t lane = t.index + channels; lane < lanes; lane += channels) {
        sum.add(shared.sums[lane]);
      }
      partials[t.block.y * channels + remainder(first + t.index, channels)] = sum;
    }
  }

  HORIZON_HD void reduce_rows(int phase, const Thread& t, Shared& shared) const {
    constexpr uint32_t kHeads = 16;
    if (phase == 0) {
      typename Tile::Running running;
      running.clear();
      const int64_t end = end_of(t);
      int64_t group = t.block.y * cut.chunk + t.index;
      for (; group < end; group += kThreads * ChannelCut::kDepth) {
        ChannelTile at;
        for (int j = 0; j < ChannelCut::kDepth; ++j) {
          const int64_t g = group + j * int64_t{kThreads};
          const int64_t image = divide(g, cut.length);
          const int64_t position = (g - image * cut.length) * kGroup;
          const int64_t left = cut.rows.length - position;
          at.offset[j] = (image * cut.rows.channels + t.block.x) * cut.rows.length + position;
          at.valid[j] = g >= end ? 0 : (left < kGroup ? left : kGroup);
        }
        tile.all(at, t.block.x, running);
      }
      shared.sums[t.index] = running.sum();
    } else if (phase == 1) {
      if (t.index >= kHeads) return;
      for (uint32_t i = t.index + kHeads; i < kThreads; i += kHeads) {
        shared.sums[t.index].add(shared.sums[i]);
      }
    } else if (t.index == 0) {
      Sum sum = shared.sums[0];
      for (uint32_t i = 1; i < kHeads; ++i) sum.add(shared.sums[i]);
      partials[t.block.y * cut.rows.channels + t.block.x] = sum;
    }
  }
};

/// Merges the partial results of each channel, then calls `finish(channel, sum)`.
template <typename Sum, typename Finish>
struct FinishChannels {
  static constexpr uint32_t kThreads = 256;
  static constexpr int kPhases = 2;
  static constexpr uint32_t kWidth = 8;  ///< channels of a block
  static constexpr uint32_t kParts = kThreads / kWidth;
  struct Shared {
    Sum sums[kThreads];
  };
  using State = Nothing;

  const Sum* partials;
  uint32_t chunks;
  int64_t channels;
  Finish finish;

  static Grid grid(int64_t channels) {
    return {static_cast<uint32_t>((channels + kWidth - 1) / kWidth), 1, 1};
  }

  HORIZON_HD void operator()(int phase, const Thread& t, State&, Shared& shared) const {
    const int64_t channel = int64_t{t.block.x} * kWidth + t.index % kWidth;
    const uint32_t part = t.index / kWidth;
    if (channel >= channels) return;
    if (phase == 0) {
      Sum sum;
      sum.clear();
      for (uint32_t i = part; i < chunks; i += kParts) sum.add(partials[i * channels + channel]);
      shared.sums[t.index] = sum;
    } else if (part == 0) {
      Sum sum = shared.sums[t.index];
      for (uint32_t i = 1; i < kParts; ++i) sum.add(shared.sums[t.index + i * kWidth]);
      finish(channel, sum);
    }
  }
};

}  // namespace horizon::ops::cuda
