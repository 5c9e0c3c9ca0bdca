// The layers of pixelcnn.cpp: the convolutions of a gated PixelCNN, their place in theta, the gates, and what one image or its
// tangents need of them, forward and backward.
#pragma once
#include "convolutions.h"

namespace {

enum Kind { VERTICAL, CROSS, HORIZONTAL, RESIDUAL, KINDS };

struct Conv {  // one convolution and its place in theta: torch's order (outputs, inputs, rows, columns), then the bias
  int outputs, inputs;
  Taps taps;
  long offset;
  long size() const { return static_cast<long>(outputs) * inputs * taps.rows * taps.columns; }
};

struct Net {
  std::vector<Conv> convs;
  long head = 0, size = 0;
  Net() {
    for (int l = 0; l < LAYERS; l++) {
      const int reach = KERNEL[l] / 2, inputs = l ? CHANNELS : INPUTS;
      add(TWICE, inputs, {-reach - 1, reach + 1, -reach, 2 * reach + 1});
      add(TWICE, TWICE, SELF);
      add(TWICE, inputs, {0, 1, -reach, reach + 1});
      add(CHANNELS, CHANNELS, SELF);
    }
    head = size;
    size += CHANNELS + 1;
  }
  void add(int outputs, int inputs, Taps taps) {
    convs.push_back({outputs, inputs, taps, size});
    size += convs.back().size() + outputs;
  }
  const Conv& conv(int layer, int kind) const { return convs[layer * KINDS + kind]; }
};
const Net NET;

struct Weights {  // theta in the order in which the loops read it
  const float* theta;
  std::vector<std::vector<float>> straight, turned;
  explicit Weights(const float* theta, bool derivatives) : theta(theta) {
    for (size_t k = 0; k < NET.convs.size(); k++) {
      const Conv& conv = NET.convs[k];
      const bool sees_x = k == VERTICAL || k == HORIZONTAL;  // in the first layer: z's maps alone have slopes
      const int first = sees_x ? 1 : 0, wide = sees_x ? SLOPES : conv.inputs, rows = conv.taps.rows;
      const int columns = conv.taps.columns, group = group_of(wide), wider = columns + group - 1, every = group * wide;
      std::vector<float> w(conv.size()), back(static_cast<size_t>(rows) * wider * conv.outputs * every);
      const float* from = theta + conv.offset;
      for (int n = 0; n < conv.outputs; n++)
        for (int i = 0; i < conv.inputs; i++)
          for (int a = 0; a < rows; a++)
            for (int b = 0; b < columns; b++, from++) {
              w[(static_cast<size_t>(a * columns + b) * conv.inputs + i) * conv.outputs + n] = *from;
              for (int g = 0; g < group && i >= first; g++) {
                const int tap = (rows - 1 - a) * wider + columns - 1 - b + g;
                back[(static_cast<size_t>(tap) * conv.outputs + n) * every + g * wide + i - first] = *from;
              }
            }
      straight.push_back(std::move(w));
      if (derivatives) turned.push_back(std::move(back));
    }
  }
  const float* bias(int layer, int kind) const { return theta + NET.conv(layer, kind).offset + NET.conv(layer, kind).size(); }
  const float* of(int layer, int kind) const { return straight[layer * KINDS + kind].data(); }
  const float* back(int layer, int kind) const { return turned[layer * KINDS + kind].data(); }
};

// What is kept of one layer and pixel: both factors of the vertical gate, both of the horizontal one; for theta's
// derivative also the vertical stack before its gate, and the horizontal stack. Tangents keep what goes into the gates.
constexpr int UP = 0, LEFT = 2 * CHANNELS, ABOVE = 4 * CHANNELS, BEFORE = 6 * CHANNELS;
constexpr int kept_of(bool all) { return (all ? 7 : 4) * CHANNELS; }

template <int N> void copy_out(Map<N>& from, float* to, int stride) {
  for (int r = 0; r < HEIGHT; r++)
    for (int c = 0; c < WIDTH; c++, to += stride) std::memcpy(to, from.at(r, c), N * sizeof(float));
}
template <int N> void copy_in(const float* from, int stride, Map<N>& to) {
  for (int r = 0; r < HEIGHT; r++)
    for (int c = 0; c < WIDTH; c++, from += stride) std::memcpy(to.at(r, c), from, N * sizeof(float));
}

// out = tanh(a) sigmoid(b) of the halves of `pre`; both factors are kept where there is a place for them.
void gate(Map<TWICE>& pre, Map<CHANNELS>& out, float* kept, int stride) {
  const Vector<16> factor = {2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1}, less = factor - 1.0f;
  for (int r = 0; r < HEIGHT; r++) {
    const float* from = pre.at(r, 0);
    float* to = out.at(r, 0);
    for (int c = 0; c < WIDTH; c++, from += TWICE, to += CHANNELS)
      if (CHANNELS == 8) {  // both halves are one vector
        float here[16], *place = kept ? kept + static_cast<long>(r * WIDTH + c) * stride : here;
        store<16>(place, factor * sigmoid<16>(factor * load<16>(from)) - less);
        store<8>(to, load<8>(place) * load<8>(place + 8));
      } else {
        for (int n = 0; n < CHANNELS; n += LANES) {
          const auto first = 2.0f * sigmoid<LANES>(2.0f * load<LANES>(from + n)) - 1.0f;
          const auto second = sigmoid<LANES>(load<LANES>(from + CHANNELS + n));
          store<LANES>(to + n, first * second);
          if (kept) {
            float* place = kept + static_cast<long>(r * WIDTH + c) * stride + n;
            store<LANES>(place, first);
            store<LANES>(place + CHANNELS, second);
          }
        }
      }
  }
}

// The gate's output again, from its factors.
void multiply(const float* kept, int stride, Map<CHANNELS>& out) {
  for (int r = 0; r < HEIGHT; r++)
    for (int c = 0; c < WIDTH; c++, kept += stride)
      for (int n = 0; n < CHANNELS; n += LANES)
        store<LANES>(out.at(r, c) + n, load<LANES>(kept + n) * load<LANES>(kept + CHANNELS + n));
}

// The derivative by the gate's input, from that by its output.
void gate_back(const float* kept, int stride, Map<CHANNELS>& slope_out, Map<TWICE>& slope_pre) {
  for (int r = 0; r < HEIGHT; r++) {
    const float* from = slope_out.at(r, 0);
    float* to = slope_pre.at(r, 0);
    for (int c = 0; c < WIDTH; c++, from += CHANNELS, to += TWICE, kept += stride)
      for (int n = 0; n < CHANNELS; n += LANES) {
        const auto first = load<LANES>(kept + n), second = load<LANES>(kept + CHANNELS + n), slope = load<LANES>(from + n);
        store<LANES>(to + n, slope * second * (1.0f - first * first));
        store<LANES>(to + CHANNELS + n, slope * first * second * (1.0f - second));
      }
  }
}

// The derivative of the gate's output along that of its input, from the factors of the gate.
void gate_tangent(Map<TWICE>& pre, const float* factors, int stride, Map<CHANNELS>& out) {
  for (int r = 0; r < HEIGHT; r++)
    for (int c = 0; c < WIDTH; c++, factors += stride)
      for (int n = 0; n < CHANNELS; n += LANES) {
        const auto first = load<LANES>(factors + n), second = load<LANES>(factors + CHANNELS + n);
        const auto a = load<LANES>(pre.at(r, c) + n), b = load<LANES>(pre.at(r, c) + CHANNELS + n);
        store<LANES>(out.at(r, c) + n, second * ((1.0f - first * first) * a + first * (1.0f - second) * b));
      }
}

// What the bend of the gate adds to the derivative by its input: from the tangents before the gate, and the derivative by
// the tangents after it.
void gate_bend(const float* factors, const float* tangents, int stride, Map<CHANNELS>& slope_tangents, Map<TWICE>& slope_pre) {
  for (int r = 0; r < HEIGHT; r++)
    for (int c = 0; c < WIDTH; c++, factors += stride, tangents += stride)
      for (int n = 0; n < CHANNELS; n += LANES) {
        const auto first = load<LANES>(factors + n), second = load<LANES>(factors + CHANNELS + n);
        const auto a = load<LANES>(tangents + n), b = load<LANES>(tangents + CHANNELS + n);
        const auto by_first = 1.0f - first * first, rest = 1.0f - second;
        const auto along = load<LANES>(slope_tangents.at(r, c) + n) * second;
        float* to = slope_pre.at(r, c) + n;
        store<LANES>(to, load<LANES>(to) + along * by_first * (rest * b - 2.0f * first * a));
        to += CHANNELS;
        store<LANES>(to, load<LANES>(to) + along * rest * (by_first * a + first * (1.0f - 2.0f * second) * b));
      }
}

// What one thread works with: the maps of one image, or of their tangents: how all maps move with those of z. Both go through
// the same convolutions, tangents without a bias; a gate is linear for tangents, by the factors that the values' worker kept.
struct Worker {
  const Weights& w;
  const bool all;  // whether theta's derivative is asked for
  const bool tangent;
  const int stride;
  Map<INPUTS> image, shifted;
  Map<TWICE> above, left, slope_above, slope_left;
  Map<CHANNELS> gated, out, h, slope_gated, slope_out, slope_h;
  Map<SLOPES> slope_maps;
  std::vector<std::vector<float>> slopes;  // by theta in the loops' order: each convolution with its bias, then the head

  Worker(const Weights& w, bool all, bool tangent = false) : w(w), all(all), tangent(tangent), stride(kept_of(all)) {
    for (const Conv& conv : NET.convs) slopes.emplace_back(all ? conv.size() + conv.outputs : 0);
    slopes.emplace_back(all ? CHANNELS + 1 : 0);
  }

  template <class P> P* place(P* kept, int layer) const { return kept ? kept + static_cast<long>(layer) * PIXELS * stride : nullptr; }
  const float* bias(int layer, int kind) const { return tangent ? nullptr : w.bias(layer, kind); }

  void read(const float* x, const float* maps) {
    for (int p = 0; p < PIXELS; p++) {
      const int r = p / WIDTH, c = p % WIDTH;
      float *straight = image.at(r, c), *moved = shifted.at(r, c);
      straight[0] = x ? x[p] : 0.0f;
      moved[0] = x && c ? x[p - 1] : 0.0f;  // the horizontal stack sees the pixels to the left, and z's maps at the pixel itself
      for (int m = 0; m < MAPS; m++) straight[1 + m] = moved[1 + m] = maps[m * PIXELS + p];
    }
  }

  void pass_gate(Map<TWICE>& pre, const float* factors, float* kept, Map<CHANNELS>& after) {
    if (tangent) gate_tangent(pre, factors, stride, after);
    else gate(pre, after, kept, stride);
  }

  // `kept` may be null; `values` is what the values' worker kept, for tangents.
  void forward(float* params, float* kept, const float* values = nullptr) {
    for (int l = 0; l < LAYERS; l++) {
      float* here = place(kept, l);
      const float* factors = place(values, l);
      auto taps = [&](int kind) { return NET.conv(l, kind).taps; };
      if (l) convolve<false>(gated, taps(VERTICAL), w.of(l, VERTICAL), bias(l, VERTICAL), above);
      else convolve<false>(image, taps(VERTICAL), w.of(l, VERTICAL), bias(l, VERTICAL), above);
      if (here && all) copy_out(above, here + ABOVE, stride);
      if (here && all && l) copy_out(h, here + BEFORE, stride);
      convolve<false>(above, SELF, w.of(l, CROSS), bias(l, CROSS), left);
      if (l) convolve<true>(h, taps(HORIZONTAL), w.of(l, HORIZONTAL), bias(l, HORIZONTAL), left);
      else convolve<true>(shifted, taps(HORIZONTAL), w.of(l, HORIZONTAL), bias(l, HORIZONTAL), left);
      if (tangent) copy_out(left, here + LEFT, stride);
      if (l + 1 < LAYERS) pass_gate(above, factors + UP, here ? here + UP : nullptr, gated);
      pass_gate(left, factors + LEFT, here ? here + LEFT : nullptr, out);
      if (l) convolve<true>(out, SELF, w.of(l, RESIDUAL), bias(l, RESIDUAL), h);
      else convolve<false>(out, SELF, w.of(l, RESIDUAL), bias(l, RESIDUAL), h);
    }
    const float* head = w.theta + NET.head;
    for (int p = 0; p < PIXELS; p++) {
      const float* at = h.at(p / WIDTH, p % WIDTH);
      Vector<LANES> sum = {};
      for (int n = 0; n < CHANNELS; n += LANES) sum += load<LANES>(at + n) * load<LANES>(head + n);
      float total = tangent ? 0.0f : head[CHANNELS];
      for (int n = 0; n < LANES; n++) total += sum[n];
      params[p] = total;
    }
  }

  // A gate's output again; `pre` are the tangents before it.
  void remake(const float* factors, const float* pre, Map<TWICE>& scratch, Map<CHANNELS>& after) {
    if (!tangent) return multiply(factors, stride, after);
    copy_in(pre, stride, scratch);
    gate_tangent(scratch, factors, stride, after);
  }

  void backward_head(const float* slope_params, const float* kept, const float* values) {
    const float* head = w.theta + NET.head;
    for (int p = 0; p < PIXELS; p++)
      for (int n = 0; n < CHANNELS; n += LANES)
        store<LANES>(slope_h.at(p / WIDTH, p % WIDTH) + n, slope_params[p] * load<LANES>(head + n));
    if (!all) return;
    const int l = LAYERS - 1;  // h after the last layer is not kept: it is made again
    const float* last = place(kept, l);
    remake(place(values, l) + LEFT, last + LEFT, left, out);
    if (l) {
      copy_in(last + BEFORE, stride, h);
      convolve<true>(out, SELF, w.of(l, RESIDUAL), bias(l, RESIDUAL), h);
    } else {
      convolve<false>(out, SELF, w.of(l, RESIDUAL), bias(l, RESIDUAL), h);
    }
    float* slope = slopes.back().data();
    for (int p = 0; p < PIXELS; p++) {
      const float* at = h.at(p / WIDTH, p % WIDTH);
      for (int n = 0; n < CHANNELS; n++) slope[n] += slope_params[p] * at[n];
      slope[CHANNELS] += slope_params[p];
    }
  }

  float* to(int layer, int kind) { return slopes[layer * KINDS + kind].data(); }

  // From the layer's output to that of its horizontal gate.
  void open(int l, const float* kept, const float* values) {
    if (all) {
      remake(place(values, l) + LEFT, place(kept, l) + LEFT, left, out);
      weigh(out, SELF, slope_h, to(l, RESIDUAL));
    }
    convolve_grouped<false>(slope_h, SELF, w.back(l, RESIDUAL), slope_out);
  }

  // From there to the layer's inputs. `moving` are the tangents beside these values and `moved` what they kept, or null.
  void close(int l, const float* kept, const float* values, Worker* moving = nullptr, const float* moved = nullptr) {
    const Taps vertical = NET.conv(l, VERTICAL).taps, horizontal = NET.conv(l, HORIZONTAL).taps;
    const float *here = place(kept, l), *factors = place(values, l), *tangents = place(moved, l);
    gate_back(factors + LEFT, stride, slope_out, slope_left);
    if (moving) gate_bend(factors + LEFT, tangents + LEFT, stride, moving->slope_out, slope_left);
    if (l + 1 < LAYERS) {
      gate_back(factors + UP, stride, slope_gated, slope_above);
      if (moving) gate_bend(factors + UP, tangents + ABOVE, stride, moving->slope_gated, slope_above);
      convolve_grouped<true>(slope_left, SELF, w.back(l, CROSS), slope_above);
    } else {
      convolve_grouped<false>(slope_left, SELF, w.back(l, CROSS), slope_above);
    }
    if (all) {
      copy_in(here + ABOVE, stride, above);
      weigh(above, SELF, slope_left, to(l, CROSS));
    }
    if (l) {
      if (all) {
        copy_in(here + BEFORE, stride, h);
        remake(place(values, l - 1) + UP, place(kept, l - 1) + ABOVE, above, gated);
        weigh(h, horizontal, slope_left, to(l, HORIZONTAL));
        weigh(gated, vertical, slope_above, to(l, VERTICAL));
      }
      convolve_grouped<true>(slope_left, horizontal.turned(), w.back(l, HORIZONTAL), slope_h);
      convolve_grouped<false>(slope_above, vertical.turned(), w.back(l, VERTICAL), slope_gated);
    } else {
      if (all) {
        weigh(shifted, horizontal, slope_left, to(l, HORIZONTAL));
        weigh(image, vertical, slope_above, to(l, VERTICAL));
      }
      if (tangent) return;  // nobody asks for the derivative by the tangents of z's maps
      convolve_grouped<false>(slope_left, horizontal.turned(), w.back(l, HORIZONTAL), slope_maps);
      convolve_grouped<true>(slope_above, vertical.turned(), w.back(l, VERTICAL), slope_maps);
    }
  }

  void write(float* slope_z) {
    for (int p = 0; p < PIXELS; p++)
      for (int m = 0; m < MAPS; m++) slope_z[m * PIXELS + p] = slope_maps.at(p / WIDTH, p % WIDTH)[m];
  }

  void backward(const float* slope_params, const float* kept, float* slope_z) {
    backward_head(slope_params, kept, kept);
    for (int l = LAYERS - 1; l >= 0; l--) {
      open(l, kept, kept);
      close(l, kept, kept);
    }
    write(slope_z);
  }

  void add_slopes(float* theta) const {  // in torch's order
    for (size_t k = 0; k < NET.convs.size(); k++) {
      const Conv& conv = NET.convs[k];
      float* to = theta + conv.offset;
      const int taps = conv.taps.rows * conv.taps.columns;
      for (int n = 0; n < conv.outputs; n++)
        for (int i = 0; i < conv.inputs; i++)
          for (int tap = 0; tap < taps; tap++)
            *to++ += slopes[k][(static_cast<long>(tap) * conv.inputs + i) * conv.outputs + n];
      for (int n = 0; n < conv.outputs && !tangent; n++) *to++ += slopes[k][conv.size() + n];
    }
    for (int n = 0; n < CHANNELS + !tangent; n++) theta[NET.head + n] += slopes.back()[n];
  }
};

}  // namespace
