#pragma once

#include <cstdint>

#include "ops/cuda/kernels/fused_elements.h"

// Where elementwise bodies find the grid of an element. A body takes a cursor with `start`, moves
// it to the first element of each piece and then from element to element.
namespace horizon::ops::cuda {

/// A grid of the device as read: the zero point is brought into [lo, hi], where every checked one
/// lies, so that codes stay defined whatever the values are.
template <typename T>
struct ElementGrid {
  T scale, inv_scale;
  int32_t zero_point;

  HORIZON_HD void read(const float* s, const int32_t* z, int32_t lo, int32_t hi) {
    scale = static_cast<T>(*s);
    inv_scale = static_cast<T>(1.0F / *s);
    const int32_t point = z == nullptr ? 0 : *z;
    zero_point = point < lo ? lo : (point > hi ? hi : point);
  }
};

/// One grid for all elements.
struct TensorGrid {
  using WideProduct = float;

  const float* scale;
  const int32_t* zero_point;
  int32_t lo, hi;

  template <typename T>
  struct Cursor {
    ElementGrid<T> grid;

    HORIZON_HD void move_to(int64_t) {}
    HORIZON_HD void advance() {}
  };

  template <typename T>
  HORIZON_HD Cursor<T> start() const {
    Cursor<T> cursor;
    cursor.grid.read(scale, zero_point, lo, hi);
    return cursor;
  }
};

/// One grid for each channel of elements counted as [blocks, outer, channels, inner]; block b has
/// the grids b * channels, …
struct ChannelGrids {
  using WideProduct = double;

  const float* scale;
  const int32_t* zero_point;  ///< null: all 0
  int32_t lo, hi;
  int64_t outer, channels, inner;

  template <typename T>
  struct Cursor {
    const ChannelGrids* grids;
    ElementGrid<T> grid;
    int64_t left;  ///< elements of the channel from here on
    int64_t channel, row, first;

    HORIZON_HD void move_to(int64_t element) {
      const int64_t run = divide(element, grids->inner);
      left = grids->inner - (element - run * grids->inner);
      const int64_t all_rows = divide(run, grids->channels);
      channel = run - all_rows * grids->channels;
      const int64_t block = divide(all_rows, grids->outer);
      row = all_rows - block * grids->outer;
      first = block * grids->channels;
      read();
    }

    /// Only to elements that exist.
    HORIZON_HD void advance() {
      if (--left != 0) return;
      left = grids->inner;
      if (++channel == grids->channels) {
        channel = 0;
        if (++row == grids->outer) {
          row = 0;
          first += grids->channels;
        }
      }
      read();
    }

   private:
    HORIZON_HD void read() {
      const int64_t at = first + channel;
      const int32_t* z = grids->zero_point;
      grid.read(grids->scale + at, z == nullptr ? nullptr : z + at, grids->lo, grids->hi);
    }
  };

  template <typename T>
  HORIZON_HD Cursor<T> start() const {
    Cursor<T> cursor;
    cursor.grids = this;
    return cursor;
  }
};

}  // namespace horizon::ops::cuda
