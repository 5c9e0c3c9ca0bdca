// The stacks of a gated PixelCNN and their derivatives on a CPU: what bsvi/nets/pixelcnn.py computes, without the many
// operations in between. Images are taken one at a time, so that what a layer makes is still in the cache for the next.
// bsvi/nets/native.py compiles this file for the sizes of one decoder: HEIGHT, WIDTH, MAPS, CHANNELS, BORDER, KERNELS.
#include <cmath>
#include <thread>

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
// derivative also the vertical stack before its gate, and the horizontal stack.
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

struct Worker {  // what one thread works with: the maps of one image
  const Weights& w;
  const bool all;  // whether theta's derivative is asked for
  const int stride;
  Map<INPUTS> image, shifted;
  Map<TWICE> above, left, slope_above, slope_left;
  Map<CHANNELS> gated, out, h, slope_gated, slope_out, slope_h;
  Map<SLOPES> slope_maps;
  std::vector<std::vector<float>> slopes;  // by theta in the loops' order: each convolution with its bias, then the head

  Worker(const Weights& w, bool all) : w(w), all(all), stride(kept_of(all)) {
    for (const Conv& conv : NET.convs) slopes.emplace_back(all ? conv.size() + conv.outputs : 0);
    slopes.emplace_back(all ? CHANNELS + 1 : 0);
  }

  template <class P> P* place(P* kept, int layer) const { return kept ? kept + static_cast<long>(layer) * PIXELS * stride : nullptr; }

  void read(const float* x, const float* maps) {
    for (int p = 0; p < PIXELS; p++) {
      const int r = p / WIDTH, c = p % WIDTH;
      float *straight = image.at(r, c), *moved = shifted.at(r, c);
      straight[0] = x[p];
      moved[0] = c ? x[p - 1] : 0.0f;  // the horizontal stack sees the pixels to the left, and z's maps at the pixel itself
      for (int m = 0; m < MAPS; m++) straight[1 + m] = moved[1 + m] = maps[m * PIXELS + p];
    }
  }

  void forward(float* params, float* kept) {
    for (int l = 0; l < LAYERS; l++) {
      float* here = place(kept, l);
      auto taps = [&](int kind) { return NET.conv(l, kind).taps; };
      if (l) convolve<false>(gated, taps(VERTICAL), w.of(l, VERTICAL), w.bias(l, VERTICAL), above);
      else convolve<false>(image, taps(VERTICAL), w.of(l, VERTICAL), w.bias(l, VERTICAL), above);
      if (here && all) copy_out(above, here + 4 * CHANNELS, stride);
      if (here && all && l) copy_out(h, here + 6 * CHANNELS, stride);
      convolve<false>(above, SELF, w.of(l, CROSS), w.bias(l, CROSS), left);
      if (l) convolve<true>(h, taps(HORIZONTAL), w.of(l, HORIZONTAL), w.bias(l, HORIZONTAL), left);
      else convolve<true>(shifted, taps(HORIZONTAL), w.of(l, HORIZONTAL), w.bias(l, HORIZONTAL), left);
      if (l + 1 < LAYERS) gate(above, gated, here, stride);
      gate(left, out, here ? here + 2 * CHANNELS : nullptr, stride);
      if (l) convolve<true>(out, SELF, w.of(l, RESIDUAL), w.bias(l, RESIDUAL), h);
      else convolve<false>(out, SELF, w.of(l, RESIDUAL), w.bias(l, RESIDUAL), h);
    }
    const float* head = w.theta + NET.head;
    for (int p = 0; p < PIXELS; p++) {
      const float* at = h.at(p / WIDTH, p % WIDTH);
      Vector<LANES> sum = {};
      for (int n = 0; n < CHANNELS; n += LANES) sum += load<LANES>(at + n) * load<LANES>(head + n);
      float total = head[CHANNELS];
      for (int n = 0; n < LANES; n++) total += sum[n];
      params[p] = total;
    }
  }

  void backward_head(const float* slope_params, const float* kept) {
    const float* head = w.theta + NET.head;
    for (int p = 0; p < PIXELS; p++)
      for (int n = 0; n < CHANNELS; n += LANES)
        store<LANES>(slope_h.at(p / WIDTH, p % WIDTH) + n, slope_params[p] * load<LANES>(head + n));
    if (!all) return;
    const float* last = place(kept, LAYERS - 1);  // h after the last layer is not kept: it is made again
    multiply(last + 2 * CHANNELS, stride, out);
    const float *more = w.of(LAYERS - 1, RESIDUAL), *bias = w.bias(LAYERS - 1, RESIDUAL);
    if (LAYERS > 1) {
      copy_in(last + 6 * CHANNELS, stride, h);
      convolve<true>(out, SELF, more, bias, h);
    } else {
      convolve<false>(out, SELF, more, bias, h);
    }
    float* slope = slopes.back().data();
    for (int p = 0; p < PIXELS; p++) {
      const float* at = h.at(p / WIDTH, p % WIDTH);
      for (int n = 0; n < CHANNELS; n++) slope[n] += slope_params[p] * at[n];
      slope[CHANNELS] += slope_params[p];
    }
  }

  void backward(const float* slope_params, const float* kept, float* slope_z) {
    backward_head(slope_params, kept);
    for (int l = LAYERS - 1; l >= 0; l--) {
      const float* here = place(kept, l);
      const Taps vertical = NET.conv(l, VERTICAL).taps, horizontal = NET.conv(l, HORIZONTAL).taps;
      float* slope = nullptr;
      auto to = [&](int kind) { return slope = slopes[l * KINDS + kind].data(); };
      if (all) {
        multiply(here + 2 * CHANNELS, stride, out);
        weigh(out, SELF, slope_h, to(RESIDUAL));
      }
      convolve_grouped<false>(slope_h, SELF, w.back(l, RESIDUAL), slope_out);
      gate_back(here + 2 * CHANNELS, stride, slope_out, slope_left);
      if (l + 1 < LAYERS) {
        gate_back(here, stride, slope_gated, slope_above);
        convolve_grouped<true>(slope_left, SELF, w.back(l, CROSS), slope_above);
      } else {
        convolve_grouped<false>(slope_left, SELF, w.back(l, CROSS), slope_above);
      }
      if (all) {
        copy_in(here + 4 * CHANNELS, stride, above);
        weigh(above, SELF, slope_left, to(CROSS));
      }
      if (l) {
        if (all) {
          copy_in(here + 6 * CHANNELS, stride, h);
          multiply(place(kept, l - 1), stride, gated);
          weigh(h, horizontal, slope_left, to(HORIZONTAL));
          weigh(gated, vertical, slope_above, to(VERTICAL));
        }
        convolve_grouped<true>(slope_left, horizontal.turned(), w.back(l, HORIZONTAL), slope_h);
        convolve_grouped<false>(slope_above, vertical.turned(), w.back(l, VERTICAL), slope_gated);
      } else {
        if (all) {
          weigh(shifted, horizontal, slope_left, to(HORIZONTAL));
          weigh(image, vertical, slope_above, to(VERTICAL));
        }
        convolve_grouped<false>(slope_left, horizontal.turned(), w.back(l, HORIZONTAL), slope_maps);
        convolve_grouped<true>(slope_above, vertical.turned(), w.back(l, VERTICAL), slope_maps);
      }
    }
    for (int p = 0; p < PIXELS; p++)
      for (int m = 0; m < MAPS; m++) slope_z[m * PIXELS + p] = slope_maps.at(p / WIDTH, p % WIDTH)[m];
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
      for (int n = 0; n < conv.outputs; n++) *to++ += slopes[k][conv.size() + n];
    }
    for (int n = 0; n <= CHANNELS; n++) theta[NET.head + n] += slopes.back()[n];
  }
};

// ln p(x | params) = sum over pixels of linear * params - softplus(t1) - softplus(t2) with t = offset + scale * params: what
// binary and grey pixels have in common. Without offsets the first is 0, and there is no second.
struct Likelihood {
  const float *linear, *first, *second;
  float first_scale, second_scale;
};

constexpr int BLOCK = 16, TOGETHER = 16;  // pixels in a vector; vectors that are added, or multiplied, in single precision
constexpr float BEYOND = -1e30f;          // an offset whose softplus is 0

double weigh_params(const Likelihood& pixels, const float* params, float* slope) {
  typedef Vector<BLOCK> V;
  const V none = V{}, one = none + 1.0f;
  V product = one, sum = none;
  double total = 0.0;
  auto log_all = [&] {
    for (int n = 0; n < BLOCK; n++) total += std::log(static_cast<double>(product[n])) + sum[n];
    product = one, sum = none;
  };
  for (int p = 0, block = 1; p < PIXELS; p += BLOCK, block++) {
    const int here = PIXELS - p < BLOCK ? PIXELS - p : BLOCK;
    auto read = [&](const float* from, float missing) {
      if (from && here == BLOCK) return load<BLOCK>(from + p);
      float values[BLOCK];
      for (int n = 0; n < BLOCK; n++) values[n] = n < here ? (from ? from[p + n] : 0.0f) : missing;
      return load<BLOCK>(values);
    };
    const V value = read(params, 0.0f), linear = read(pixels.linear, 0.0f);
    const V t = read(pixels.first, BEYOND) + pixels.first_scale * value, s = sigmoid<BLOCK>(t), rest = 1.0f - s;
    product *= s > rest ? s : rest;  // -softplus(t) = ln max(s, 1 - s) - max(t, 0)
    sum += linear * value - (t > none ? t : none);
    V by_params = linear - pixels.first_scale * s;
    if (pixels.second) {
      const V u = read(pixels.second, BEYOND) + pixels.second_scale * value, q = sigmoid<BLOCK>(u), other = 1.0f - q;
      product *= q > other ? q : other;
      sum -= u > none ? u : none;
      by_params -= pixels.second_scale * q;
    }
    if (slope) std::memcpy(slope + p, &by_params, here * sizeof(float));
    if (block % TOGETHER == 0) log_all();
  }
  log_all();
  return total;
}

// Calls work(thread, first image, image after the last) on each thread.
template <class F> void share_images(long batch, int threads, F work) {
  std::vector<std::thread> others;
  for (int t = 1; t < threads; t++) others.emplace_back(work, t, batch * t / threads, batch * (t + 1) / threads);
  work(0, 0L, batch / threads);
  for (std::thread& other : others) other.join();
}

}  // namespace

extern "C" {

long count_theta() { return NET.size; }

long count_kept(int all) { return static_cast<long>(LAYERS) * PIXELS * kept_of(all); }

// params (batch, pixels) from x (batch, pixels), z's maps (batch, MAPS, pixels) and theta; `kept` may be null.
void run_forward(long batch, const float* x, const float* maps, const float* theta, float* params, float* kept, int all,
                 int threads) {
  const Weights weights(theta, false);
  share_images(batch, threads, [&](int, long begin, long end) {
    Worker worker(weights, all);
    for (long i = begin; i < end; i++) {
      worker.read(x + i * PIXELS, maps + i * PIXELS * MAPS);
      worker.forward(params + i * PIXELS, kept ? kept + i * count_kept(all) : nullptr);
    }
  });
}

// ln p(x | maps) in double precision and, unless that is null, its derivative by the maps; `second` may be null.
void run_likelihood(long batch, const float* x, const float* maps, const float* theta, const float* linear, const float* first,
                    const float* second, double first_scale, double second_scale, double* values, float* slope_maps,
                    int threads) {
  const Weights weights(theta, slope_maps != nullptr);
  share_images(batch, threads, [&](int, long begin, long end) {
    Worker worker(weights, false);
    std::vector<float> kept(slope_maps ? count_kept(0) : 0), params(PIXELS), slope(PIXELS);
    for (long i = begin; i < end; i++) {
      auto of_image = [&](const float* all) { return all ? all + i * PIXELS : nullptr; };
      worker.read(x + i * PIXELS, maps + i * PIXELS * MAPS);
      worker.forward(params.data(), slope_maps ? kept.data() : nullptr);
      const Likelihood pixels = {of_image(linear), of_image(first), of_image(second), static_cast<float>(first_scale),
                                 static_cast<float>(second_scale)};
      values[i] = weigh_params(pixels, params.data(), slope.data());
      if (slope_maps) worker.backward(slope.data(), kept.data(), slope_maps + i * PIXELS * MAPS);
    }
  });
}

// The derivatives by z's maps and, unless that is null, by theta, from that by params and what run_forward kept.
void run_backward(long batch, const float* x, const float* maps, const float* theta, const float* kept,
                  const float* slope_params, float* slope_maps, float* slope_theta, int threads) {
  const bool all = slope_theta != nullptr;
  const Weights weights(theta, true);
  std::vector<std::vector<float>> shares(threads);
  share_images(batch, threads, [&](int thread, long begin, long end) {
    Worker worker(weights, all);
    for (long i = begin; i < end; i++) {
      if (all) worker.read(x + i * PIXELS, maps + i * PIXELS * MAPS);
      worker.backward(slope_params + i * PIXELS, kept + i * count_kept(all), slope_maps + i * PIXELS * MAPS);
    }
    if (all) {
      shares[thread].resize(NET.size);
      worker.add_slopes(shares[thread].data());
    }
  });
  if (all)
    for (const std::vector<float>& share : shares)  // always in the same order: equal runs have equal bits
      for (long i = 0; i < NET.size; i++) slope_theta[i] = share[i] + (&share == &shares[0] ? 0.0f : slope_theta[i]);
}
}
