// Vectors, maps and convolutions of pixelcnn.cpp, for sizes that are known when it is compiled.
//
// Maps are kept with their channels last and a border of zeros, so that no loop asks where an image ends. A convolution is
// a sum of products of one number of the input with a vector of output channels. Its derivative by the input is another
// convolution, with the weights turned round; its derivative by the weights is the same sum over pixels.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int KERNEL[] = {KERNELS};
constexpr int LAYERS = sizeof KERNEL / sizeof KERNEL[0], PIXELS = HEIGHT * WIDTH, INPUTS = 1 + MAPS, TWICE = 2 * CHANNELS;
constexpr int SLOPES = MAPS <= 4 && WIDTH % 4 == 0 ? 4 : 8;  // channels of the derivative by z's maps
constexpr int LANES = CHANNELS % 16 == 0 ? 16 : 8;   // of a vector; a map of 2 * CHANNELS always has vectors of 16
constexpr int TILE = WIDTH % 14 == 0 ? 14 : 16;      // pixels whose sums stay in registers: half of a row of 28 or of 32

template <int N> struct Vectors;
template <> struct Vectors<16> {
  typedef float V __attribute__((vector_size(64)));
  typedef int32_t I __attribute__((vector_size(64)));
};
template <> struct Vectors<8> {
  typedef float V __attribute__((vector_size(32)));
  typedef int32_t I __attribute__((vector_size(32)));
};
template <int N> using Vector = typename Vectors<N>::V;

template <int N> inline Vector<N> load(const float* from) {
  Vector<N> value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <int N> inline void store(float* to, Vector<N> value) { std::memcpy(to, &value, sizeof value); }

// 1 / (1 + exp(-x)); exp is a power of two times a polynomial, good to the last digits.
template <int N> inline Vector<N> sigmoid(Vector<N> x) {
  const Vector<N> least = Vector<N>{} - 87.0f, most = Vector<N>{} + 87.0f;
  x = x < least ? least : x;
  x = x > most ? most : x;
  const Vector<N> magic = x * -1.44269504f + 12582912.0f;  // its last bits are the power
  const Vector<N> power = magic - 12582912.0f;
  const Vector<N> r = -x - power * 0.693359375f + power * 2.12194440e-4f;
  Vector<N> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const auto bits = (reinterpret_cast<typename Vectors<N>::I>(magic) << 23) + 0x3f800000;
  return 1.0f / (1.0f + p * reinterpret_cast<Vector<N>>(bits));
}

template <int N> struct Map {  // N channels of one image with a border of zeros
  static constexpr long ROW = (WIDTH + 2 * BORDER) * N;
  std::vector<float> numbers = std::vector<float>((HEIGHT + 2 * BORDER) * ROW);
  float* at(int r, int c) { return numbers.data() + (r + BORDER) * ROW + (c + BORDER) * N; }
};

struct Taps {  // the pixels that a convolution sees: so many rows and columns, the first of them relative to its own
  int top, rows, left, columns;
  Taps turned() const { return {1 - top - rows, rows, 1 - left - columns, columns}; }
};
constexpr Taps SELF = {0, 1, 0, 1};

const float ZERO[2 * (CHANNELS > 8 ? CHANNELS : 8)] = {};  // in place of a bias

// T vectors of outputs, `MOVE` pixels apart.
template <int IN, int OUT, int N, int T, int MOVE, bool ADD>
__attribute__((always_inline)) inline void sum_tile(const float* in, Taps taps, const float* w, const float* bias, float* out) {
  Vector<N> sum[T];
  for (int t = 0; t < T; t++) {
    sum[t] = load<N>(bias);
    if (ADD) sum[t] += load<N>(out + t * OUT);
  }
  for (int a = 0; a < taps.rows; a++)
    for (int b = 0; b < taps.columns; b++) {
      const float* seen = in + a * Map<IN>::ROW + b * IN;
#pragma GCC unroll 4
      for (int i = 0; i < IN; i++, w += OUT) {
        const Vector<N> weight = load<N>(w);
#pragma GCC unroll 16
        for (int t = 0; t < T; t++) sum[t] += weight * seen[t * MOVE * IN + i];
      }
    }
  for (int t = 0; t < T; t++) store<N>(out + t * OUT, sum[t]);
}

// out = bias + w * in, added to what is there with ADD. w is (rows, columns, inputs, outputs); a null bias is zero.
template <bool ADD, int IN, int OUT> void convolve(Map<IN>& in, Taps taps, const float* w, const float* bias, Map<OUT>& out) {
  constexpr int N = OUT % 16 == 0 ? 16 : 8;
  for (int n = 0; n < OUT; n += N)
    for (int r = 0; r < HEIGHT; r++) {
      const float* seen = in.at(r + taps.top, taps.left);
      float* to = out.at(r, 0) + n;
      const float* start = (bias ? bias : ZERO) + n;
      int c = 0;
      for (; c + TILE <= WIDTH; c += TILE)
        sum_tile<IN, OUT, N, TILE, 1, ADD>(seen + c * IN, taps, w + n, start, to + c * OUT);
      for (; c + 4 <= WIDTH; c += 4) sum_tile<IN, OUT, N, 4, 1, ADD>(seen + c * IN, taps, w + n, start, to + c * OUT);
      for (; c < WIDTH; c++) sum_tile<IN, OUT, N, 1, 1, ADD>(seen + c * IN, taps, w + n, start, to + c * OUT);
    }
}

// Few outputs leave a vector half empty, so `GROUP` neighbours share one: w has a weight for each of them and `GROUP - 1` more
// columns, with zeros where a neighbour does not see a pixel.
constexpr int group_of(int outputs) {
  return outputs < 16 && 16 % outputs == 0 && WIDTH % (16 / outputs) == 0 ? 16 / outputs : 1;
}

template <bool ADD, int IN, int OUT> void convolve_grouped(Map<IN>& in, Taps taps, const float* w, Map<OUT>& out) {
  constexpr int GROUP = group_of(OUT);
  if constexpr (GROUP == 1) {
    convolve<ADD>(in, taps, w, nullptr, out);
  } else {
    constexpr int VECTORS = WIDTH / GROUP, T = VECTORS % 14 == 0 ? 14 : VECTORS % 8 == 0 ? 8 : VECTORS % 7 == 0 ? 7 : 1;
    const Taps wider = {taps.top, taps.rows, taps.left, taps.columns + GROUP - 1};
    for (int r = 0; r < HEIGHT; r++)
      for (int c = 0; c < WIDTH; c += T * GROUP)
        sum_tile<IN, 16, 16, T, GROUP, ADD>(in.at(r + taps.top, c + taps.left), wider, w, ZERO, out.at(r, c));
  }
}

template <int IN, int OUT, int N, int J> inline void sum_pixels(const float* in, const float* slope, float* w) {
  Vector<N> sum[J] = {};
  for (int r = 0; r < HEIGHT; r++, in += Map<IN>::ROW, slope += Map<OUT>::ROW)
    for (int c = 0; c < WIDTH; c++) {
      const Vector<N> s = load<N>(slope + c * OUT);
#pragma GCC unroll 8
      for (int j = 0; j < J; j++) sum[j] += s * in[c * IN + j];
    }
  for (int j = 0; j < J; j++) store<N>(w + j * OUT, load<N>(w + j * OUT) + sum[j]);
}

// Adds the derivative by the weights and, behind them, by the bias; `slope` holds that by the convolution's output.
template <int IN, int OUT> void weigh(Map<IN>& in, Taps taps, Map<OUT>& slope, float* w) {
  constexpr int N = OUT % 16 == 0 ? 16 : 8, J = IN % 8 == 0 ? 8 : IN;
  float* bias = w + static_cast<long>(taps.rows) * taps.columns * IN * OUT;
  for (int n = 0; n < OUT; n += N) {
    const float* from = slope.at(0, 0) + n;
    for (int a = 0; a < taps.rows; a++)
      for (int b = 0; b < taps.columns; b++)
        for (int i = 0; i < IN; i += J)
          sum_pixels<IN, OUT, N, J>(in.at(taps.top + a, taps.left + b) + i, from,
                                    w + (static_cast<long>(a * taps.columns + b) * IN + i) * OUT + n);
    Vector<N> total = {};
    for (int r = 0; r < HEIGHT; r++)
      for (int c = 0; c < WIDTH; c++) total += load<N>(from + r * Map<OUT>::ROW + c * OUT);
    store<N>(bias + n, load<N>(bias + n) + total);
  }
}

}  // namespace
