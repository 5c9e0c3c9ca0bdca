// The stacks of a gated PixelCNN and their derivatives on a CPU: what bsvi/nets/pixelcnn.py computes, without the many
// operations in between. Images are taken one at a time, so that what a layer makes is still in the cache for the next.
// bsvi/nets/native.py compiles this file for the sizes of one decoder: HEIGHT, WIDTH, MAPS, CHANNELS, BORDER, KERNELS.
#include <cmath>
#include <thread>

#include "stacks.h"

namespace {

// ln p(x | params) = sum over pixels of linear * params - softplus(t1) - softplus(t2) with t = offset + scale * params: what
// binary and grey pixels have in common. Without offsets the first is 0, and there is no second.
struct Likelihood {
  const float *linear, *first, *second;
  float first_scale, second_scale;
};

constexpr int BLOCK = 16, TOGETHER = 16;  // pixels in a vector; vectors that are added, or multiplied, in single precision
constexpr float BEYOND = -1e30f;          // an offset whose softplus is 0

// `slope` is the derivative by params and `bend` that of the slope; both may be null.
double weigh_params(const Likelihood& pixels, const float* params, float* slope, float* bend = nullptr) {
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
    V by_params = linear - pixels.first_scale * s, by_slope = -pixels.first_scale * pixels.first_scale * s * rest;
    if (pixels.second) {
      const V u = read(pixels.second, BEYOND) + pixels.second_scale * value, q = sigmoid<BLOCK>(u), other = 1.0f - q;
      product *= q > other ? q : other;
      sum -= u > none ? u : none;
      by_params -= pixels.second_scale * q;
      by_slope -= pixels.second_scale * pixels.second_scale * q * other;
    }
    if (slope) std::memcpy(slope + p, &by_params, here * sizeof(float));
    if (bend) std::memcpy(bend + p, &by_slope, here * sizeof(float));
    if (block % TOGETHER == 0) log_all();
  }
  log_all();
  return total;
}

struct Twice {  // an image with the tangents of its maps along one direction of z's maps
  Worker values, tangents;
  std::vector<float> kept, moved, slope, bend;
  explicit Twice(const Weights& w)
      : values(w, true), tangents(w, true, true), kept(LAYERS * PIXELS * kept_of(true)), moved(kept.size()), slope(PIXELS),
        bend(PIXELS) {}

  // The derivatives of by_value ln p(x | maps) + direction' d ln p(x | maps) / d maps; also params, and their tangents. Without
  // a direction those of the first alone.
  void run(const float* x, const float* maps, const float* direction, double by_value, const Likelihood& pixels, float* params,
           float* moving, float* slope_maps) {
    values.read(x, maps);
    values.forward(params, kept.data());
    if (!direction) {
      weigh_params(pixels, params, slope.data());
      for (int p = 0; p < PIXELS; p++) slope[p] *= static_cast<float>(by_value);
      return values.backward(slope.data(), kept.data(), slope_maps);
    }
    tangents.read(nullptr, direction);
    tangents.forward(moving, moved.data(), kept.data());
    weigh_params(pixels, params, slope.data(), bend.data());
    for (int p = 0; p < PIXELS; p++) bend[p] = static_cast<float>(by_value) * slope[p] + bend[p] * moving[p];
    values.backward_head(bend.data(), kept.data(), kept.data());
    tangents.backward_head(slope.data(), moved.data(), kept.data());
    for (int l = LAYERS - 1; l >= 0; l--) {
      tangents.open(l, moved.data(), kept.data());
      values.open(l, kept.data(), kept.data());
      values.close(l, kept.data(), kept.data(), &tangents, moved.data());
      tangents.close(l, moved.data(), kept.data());
    }
    values.write(slope_maps);
  }
};

// The threads' shares of theta's derivative, always added in the same order: equal runs have equal bits.
void add_shares(const std::vector<std::vector<float>>& shares, float* theta) {
  for (const std::vector<float>& share : shares)
    for (long i = 0; i < NET.size; i++) theta[i] = share[i] + (&share == &shares[0] ? 0.0f : theta[i]);
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
  if (all) add_shares(shares, slope_theta);
}

// The derivatives by z's maps and theta of by_value ln p(x | maps) + direction' d ln p(x | maps) / d maps for each image: what a
// step of a refinement needs that is trained itself; `direction` may be null. `params` and `moving` are for the likelihood's own parameters.
void run_twice(long batch, const float* x, const float* maps, const float* direction, const float* theta, const float* linear,
               const float* first, const float* second, double first_scale, double second_scale, const double* by_value,
               float* params, float* moving, float* slope_maps, float* slope_theta, int threads) {
  const Weights weights(theta, true);
  std::vector<std::vector<float>> shares(threads);
  share_images(batch, threads, [&](int thread, long begin, long end) {
    Twice twice(weights);
    for (long i = begin; i < end; i++) {
      auto of_image = [&](const float* all) { return all ? all + i * PIXELS : nullptr; };
      const Likelihood pixels = {of_image(linear), of_image(first), of_image(second), static_cast<float>(first_scale),
                                 static_cast<float>(second_scale)};
      const long at = i * PIXELS, at_maps = at * MAPS;
      twice.run(x + at, maps + at_maps, direction ? direction + at_maps : nullptr, by_value[i], pixels, params + at, moving + at,
                slope_maps + at_maps);
    }
    shares[thread].resize(NET.size);
    twice.values.add_slopes(shares[thread].data());
    twice.tangents.add_slopes(shares[thread].data());
  });
  add_shares(shares, slope_theta);
}
}
