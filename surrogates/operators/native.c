/* Kernels and random features on a CPU: distances or angles, the elementwise part and the sums in
 * one pass over numbers that stay in the nearest cache. native.py compiles this file for the
 * processor it runs on, once for float and once, with -DDOUBLE, for double.
 *
 * Notation, as in tiles.py: X (m, d) points, Z (n, d) others, both in units of the lengthscale;
 * q points of each function, those of function 0 first; W (s, n) the weights of s functions, of
 * function i for row j at i * apart + j * step.
 *
 * Z comes in panels of PANEL rows, coordinate by coordinate: (panels, d, PANEL), with zeros after
 * the last row. What is computed of a point does not depend on the points beside it, to the last
 * bit.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef DOUBLE
typedef double real;
typedef uint64_t bits;
#define SQRT __builtin_sqrt
#define MANTISSA 52
#define BIAS 1023
/* 1.5 · 2^52 + bias: sums with it are rounded to integers, which fill their last bits, biased */
#define ROUNDING (6755399441055744.0 + BIAS)
#define LOG2_E 1.4426950408889634
#if defined(__FMA__) || defined(__aarch64__)
#define LARGEST_ANGLE 1e9
#else
#define LARGEST_ANGLE 1e6 /* whose product with the digits of pi is exact */
#endif
#else
typedef float real;
typedef uint32_t bits;
#define SQRT __builtin_sqrtf
#define MANTISSA 23
#define BIAS 127
#define ROUNDING (12582912.0f + BIAS)
#define LOG2_E 1.442695022f
#define LARGEST_ANGLE 1e9f
#endif

#define PANEL 256
#define TOGETHER 4 /* points that are evaluated with a part of a panel once it is read */
#define INLINE static inline __attribute__((always_inline))
#define ALONE static __attribute__((noinline)) /* one code, and one rounding, for all its callers */

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
typedef real vector __attribute__((vector_size(BYTES), aligned(sizeof(real))));
#define LANES ((long)(BYTES / sizeof(real)))
#define AT(pointer) (*(vector *)(pointer))
#define READ(pointer) (*(const vector *)(pointer))

enum { RBF, MATERN12, MATERN32, MATERN52 };

/* exp(-r) = 2^-t for 0 <= t = rate · r <= BIAS: 2^-n 2^y, with t rounded to n, what is left y in
 * [-1/2, 1/2], and a polynomial of 2^y that is 1 at 0, off by 2e-9 in float and 8e-18 in double.
 * That is far below rounding: errors that are alike at like distances add up in the eigenvalues of
 * a kernel matrix. 2^-BIAS, whose power of 2 is subnormal, is found as 0. */
INLINE real decay_of(real rate, real r)
{
    real shifted = ROUNDING - rate * r;
    real y = ROUNDING - shifted - rate * r;
#ifdef DOUBLE
    real p = 4.45496059818651839e-10;
    p = p * y + 7.07258594926922370e-9;
    p = p * y + 1.01780624458457735e-7;
    p = p * y + 1.32154425879216897e-6;
    p = p * y + 1.52527338298361184e-5;
    p = p * y + 1.54035304417360502e-4;
    p = p * y + 1.33335581464169353e-3;
    p = p * y + 9.61812910760688853e-3;
    p = p * y + 5.55041086648215943e-2;
    p = p * y + 2.40226506959100982e-1;
    p = p * y + 6.93147180559945309e-1;
#else
    real p = 1.53533622e-4f;
    p = p * y + 1.33988744e-3f;
    p = p * y + 9.61843736e-3f;
    p = p * y + 5.55033247e-2f;
    p = p * y + 2.40226479e-1f;
    p = p * y + 6.93147203e-1f;
#endif
    bits exponent;
    memcpy(&exponent, &shifted, sizeof exponent);
    exponent <<= MANTISSA;
    real power;
    memcpy(&power, &exponent, sizeof power);
    return (p * y + 1) * power;
}

/* The kernel without its outputscale is level · decay, and falls in d2 by fall · decay */
typedef struct {
    real decay, level, fall;
} terms;

INLINE terms terms_of(int profile, real d2)
{
    static const real factors[] = {0, 1, 3, 5}; /* r² = factor · d2 */
    real rate = profile == RBF ? LOG2_E / 2 : LOG2_E;
    real r = profile == RBF ? d2 : SQRT(factors[profile] * d2);
    r = r > BIAS / rate ? BIAS / rate : r; /* the decay is 0 beyond, also times r */
    terms t = {decay_of(rate, r), 1, (real)0.5};
    if (profile == MATERN12) {
        t.fall = r == 0 ? 0 : t.fall / r; /* at a point of Z it has no direction */
    } else if (profile == MATERN32) {
        t.level = 1 + r;
        t.fall = (real)1.5;
    } else if (profile == MATERN52) {
        t.level = 1 + r * (1 + r * (real)(1.0 / 3.0));
        t.fall = (real)(5.0 / 6.0) * (1 + r);
    }
    return t;
}

typedef void fill(const real *d2, long count, real scale, real *out);
typedef real weigh(const real *d2, const real *w, long count, real *slopes);

/* fill: kernel values. weigh: the sum of the values times w, and the falls in d2 times w */
#define PROFILE(NAME, KIND)                                                                        \
    ALONE void fill_##NAME(const real *d2, long count, real scale, real *out)                      \
    {                                                                                              \
        _Pragma("omp simd") for (long j = 0; j < count; j++)                                       \
        {                                                                                          \
            terms t = terms_of(KIND, d2[j]);                                                       \
            out[j] = t.decay * t.level * scale;                                                    \
        }                                                                                          \
    }                                                                                              \
    ALONE real weigh_##NAME(const real *d2, const real *w, long count, real *slopes)               \
    {                                                                                              \
        real sum = 0;                                                                              \
        _Pragma("omp simd reduction(+ : sum)") for (long j = 0; j < count; j++)                    \
        {                                                                                          \
            terms t = terms_of(KIND, d2[j]);                                                       \
            real weighted = t.decay * w[j];                                                        \
            sum += t.level * weighted;                                                             \
            slopes[j] = t.fall * weighted;                                                         \
        }                                                                                          \
        return sum;                                                                                \
    }

PROFILE(rbf, RBF)
PROFILE(matern12, MATERN12)
PROFILE(matern32, MATERN32)
PROFILE(matern52, MATERN52)

static fill *const FILL[] = {fill_rbf, fill_matern12, fill_matern32, fill_matern52};
static weigh *const WEIGH[] = {weigh_rbf, weigh_matern12, weigh_matern32, weigh_matern52};

INLINE long rounded_up(long count, long multiple)
{
    return (count + multiple - 1) / multiple * multiple;
}

INLINE long panels_of(long n)
{
    return (n + PANEL - 1) / PANEL;
}

INLINE long rows_of(long n, long panel)
{
    return n - panel * PANEL < PANEL ? n - panel * PANEL : PANEL;
}

INLINE real sum_of(vector v)
{
    real sums[LANES];
    memcpy(sums, &v, sizeof sums);
#pragma GCC unroll 8
    for (long half = LANES / 2; half > 0; half /= 2)
#pragma omp simd
        for (long lane = 0; lane < half; lane++)
            sums[lane] += sums[lane + half];
    return sums[0];
}

/* TOGETHER points of X, from i on; where there are fewer before stop, the last one fills up: all
 * points go through the same code, and are rounded alike */
INLINE long points_from(long i, long stop, long d, const real *X, const real **x)
{
    for (long p = 0; p < TOGETHER; p++)
        x[p] = X + (i + p < stop ? i + p : stop - 1) * d;
    return stop - i < TOGETHER ? stop - i : TOGETHER;
}

/* For every point and row z of a panel: the sum over coordinates of (z - x)², or of x z */
INLINE void pairs(int squares, long d, const real **x, const real *Z, long count,
                  real (*out)[PANEL])
{
    for (long j = 0; j < count; j += 2 * LANES) {
        vector sums[TOGETHER][2];
        for (int p = 0; p < TOGETHER; p++)
            sums[p][0] = sums[p][1] = (vector){0};
        for (long k = 0; k < d; k++) {
            vector first = READ(Z + k * PANEL + j);
            vector second = READ(Z + k * PANEL + j + LANES);
            for (int p = 0; p < TOGETHER; p++) {
                real at = x[p][k];
                sums[p][0] += squares ? (first - at) * (first - at) : at * first;
                sums[p][1] += squares ? (second - at) * (second - at) : at * second;
            }
        }
        for (int p = 0; p < TOGETHER; p++) {
            AT(out[p] + j) = sums[p][0];
            AT(out[p] + j + LANES) = sums[p][1];
        }
    }
}

/* A function's weights for the rows of a panel, one after the other: copied to `copy` where they lie
 * apart. Functions beside each other share what is read for that. */
INLINE const real *weights_of(const real *W, long apart, long step, long function, long panel,
                              long count, real *copy)
{
    const real *first = W + function * apart + panel * PANEL * step;
    if (step == 1)
        return first;
    for (long j = 0; j < count; j++)
        copy[j] = first[j * step];
    return copy;
}

/* Add the sum over a panel of slopes · (z - x), or of slopes · z, to each point's gradient */
INLINE void add_gradients(int differences, long points, long d, const real **x, const real *Z,
                          long count, real (*slopes)[PANEL], double *gradients)
{
    long whole = rounded_up(count, LANES);
    for (int p = 0; p < TOGETHER; p++)
        for (long j = count; j < whole; j++)
            slopes[p][j] = 0;
    for (long k = 0; k < d; k++) {
        vector sums[TOGETHER];
        for (int p = 0; p < TOGETHER; p++)
            sums[p] = (vector){0};
        for (long j = 0; j < whole; j += LANES) {
            vector z = READ(Z + k * PANEL + j);
            for (int p = 0; p < TOGETHER; p++)
                sums[p] += READ(slopes[p] + j) * (differences ? z - x[p][k] : z);
        }
        for (long p = 0; p < points; p++)
            gradients[p * d + k] += sum_of(sums[p]);
    }
}

/* Kernel values (m, n) of points start to stop of X: row i of `out` belongs to point i */
void values(long profile, long start, long stop, long d, long n, const real *X, const real *Z,
            double scale, real *out)
{
    real d2[TOGETHER][PANEL];
    const real *x[TOGETHER];
    for (long panel = 0; panel < panels_of(n); panel++) {
        long count = rows_of(n, panel);
        for (long i = start; i < stop; i += TOGETHER) {
            long points = points_from(i, stop, d, X, x);
            pairs(1, d, x, Z + panel * d * PANEL, count, d2);
            for (long p = 0; p < points; p++)
                FILL[profile](d2[p], count, (real)scale, out + (i + p) * n + panel * PANEL);
        }
    }
}

/* Add f_i(x) = sum_j k(x, z_j) W_ij of each function at its own points start to stop to `sums`
 * (m,), and half of its gradient to `gradients` (m, d) */
void kernel_sums(long profile, long start, long stop, long q, long d, long n, const real *X,
                 const real *Z, long apart, long step, const real *W, double *sums,
                 double *gradients)
{
    real d2[TOGETHER][PANEL], slopes[TOGETHER][PANEL] = {{0}}, copy[PANEL];
    const real *x[TOGETHER], *w = W;
    for (long panel = 0; panel < panels_of(n); panel++) {
        const real *z = Z + panel * d * PANEL;
        long count = rows_of(n, panel);
        for (long i = start; i < stop; i += TOGETHER) {
            long points = points_from(i, stop, d, X, x);
            pairs(1, d, x, z, count, d2);
            for (long p = 0; p < points; p++) {
                if (i + p == start || (i + p) % q == 0)
                    w = weights_of(W, apart, step, (i + p) / q, panel, count, copy);
                sums[i + p] += WEIGH[profile](d2[p], w, count, slopes[p]);
            }
            add_gradients(1, points, d, x, z, count, slopes, gradients + i * d);
        }
    }
}

/* Store the cosine and the sine of an angle: by r, what is left of it beside the nearest multiple
 * of pi, and the minimax polynomials of (sin r - r) / r³ and (cos r - 1 + r²/2) / r⁴ in r², off by
 * 6e-9 in float and 3e-19 in double. */
INLINE void cosine_and_sine(real angle, real *cosine, real *sine)
{
    double halves = (double)angle * 0.31830988618379067154;
    double nearest = __builtin_rint(halves);
    double odd = nearest - 2 * __builtin_rint(0.5 * nearest); /* -1, 0 or 1 */
#ifdef DOUBLE
    double r = angle - nearest * 3.14159265346825122833e+00;
    r = r - nearest * 1.21542010126079319532e-10;
    r = r - nearest * 4.04453249759190126308e-21;
    double x = r * r;
    double s = 2.72116605474445306e-15;
    s = s * x - 7.64299066139037356e-13;
    s = s * x + 1.60589396748047640e-10;
    s = s * x - 2.50521068721986448e-8;
    s = s * x + 2.75573192111308522e-6;
    s = s * x - 1.98412698412091827e-4;
    s = s * x + 8.33333333333319421e-3;
    s = s * x - 1.66666666666666656e-1;
    double c = -1.51367517176105253e-16;
    c = c * x + 4.77706703916652018e-14;
    c = c * x - 1.14706795624940200e-11;
    c = c * x + 2.08767559129012297e-9;
    c = c * x - 2.75573192134545538e-7;
    c = c * x + 2.48015873015275280e-5;
    c = c * x - 1.38888888888887128e-3;
    c = c * x + 4.16666666666666647e-2;
#else
    /* Found in double: in float it would lose as many digits as the angle has */
    float r = (float)((halves - nearest) * 3.14159265358979323846);
    float x = r * r;
    float s = 2.60576564e-6f;
    s = s * x - 1.98095965e-4f;
    s = s * x + 8.33306616e-3f;
    s = s * x - 1.66666595e-1f;
    float c = -2.61936823e-7f;
    c = c * x + 2.47692979e-5f;
    c = c * x - 1.38885691e-3f;
    c = c * x + 4.16666558e-2f;
#endif
    real is_odd = (real)odd;
    real sign = 1 - 2 * is_odd * is_odd;
    *cosine = sign * (c * x * x - (real)0.5 * x + 1);
    *sine = sign * (s * x * r + r);
}

/* Replace the few angles that are too large for that by one of the same cosine and sine */
ALONE void reduce(real *angles, long count)
{
    int any = 0;
#pragma omp simd reduction(| : any)
    for (long j = 0; j < count; j++)
        any |= angles[j] > LARGEST_ANGLE || angles[j] < -LARGEST_ANGLE;
    for (long j = 0; any && j < count; j++)
        if (fabs((double)angles[j]) > LARGEST_ANGLE)
            angles[j] = (real)atan2(sin((double)angles[j]), cos((double)angles[j]));
}

ALONE void fill_waves(const real *angles, long count, real *cosines, real *sines)
{
#pragma omp simd
    for (long j = 0; j < count; j++) {
        real c, s;
        cosine_and_sine(angles[j], &c, &s);
        cosines[j] = c;
        sines[j] = s;
    }
}

ALONE real weigh_waves(const real *angles, const real *of_cosines, const real *of_sines,
                       long count, real *slopes)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long j = 0; j < count; j++) {
        real c, s;
        cosine_and_sine(angles[j], &c, &s);
        sum += of_cosines[j] * c + of_sines[j] * s;
        slopes[j] = of_sines[j] * c - of_cosines[j] * s;
    }
    return sum;
}

/* cos and sin (m, n) of the angles of points start to stop with the n frequencies Z */
void waves(long start, long stop, long d, long n, const real *X, const real *Z, real *cosines,
           real *sines)
{
    real angles[TOGETHER][PANEL];
    const real *x[TOGETHER];
    for (long panel = 0; panel < panels_of(n); panel++) {
        long count = rows_of(n, panel);
        for (long i = start; i < stop; i += TOGETHER) {
            long points = points_from(i, stop, d, X, x);
            pairs(0, d, x, Z + panel * d * PANEL, count, angles);
            for (long p = 0; p < points; p++) {
                reduce(angles[p], count);
                long place = (i + p) * n + panel * PANEL;
                fill_waves(angles[p], count, cosines + place, sines + place);
            }
        }
    }
}

/* Add f_i(x) = sum_j C_ij cos(x z_j) + S_ij sin(x z_j) of each function at its own points start to
 * stop to `sums` (m,), and its gradient to `gradients` (m, d) */
void wave_sums(long start, long stop, long q, long d, long n, const real *X, const real *Z,
               long apart, long step, const real *C, const real *S, double *sums,
               double *gradients)
{
    real angles[TOGETHER][PANEL], slopes[TOGETHER][PANEL] = {{0}}, copies[2][PANEL];
    const real *x[TOGETHER], *c = C, *s = S;
    for (long panel = 0; panel < panels_of(n); panel++) {
        const real *z = Z + panel * d * PANEL;
        long count = rows_of(n, panel);
        for (long i = start; i < stop; i += TOGETHER) {
            long points = points_from(i, stop, d, X, x);
            pairs(0, d, x, z, count, angles);
            for (long p = 0; p < points; p++) {
                reduce(angles[p], count);
                if (i + p == start || (i + p) % q == 0) {
                    c = weights_of(C, apart, step, (i + p) / q, panel, count, copies[0]);
                    s = weights_of(S, apart, step, (i + p) / q, panel, count, copies[1]);
                }
                sums[i + p] += weigh_waves(angles[p], c, s, count, slopes[p]);
            }
            add_gradients(0, points, d, x, z, count, slopes, gradients + i * d);
        }
    }
}
