// Products and decoder layers of a model on a CPU, for blocks of a few rows.
//
// Decoding reads every weight once per forward. As long as the arithmetic of a block takes no longer, a forward takes the
// time of reading the weights from memory. Matrices are stored in panels of WIDTH outputs: for each input, the WIDTH weights
// of these outputs follow each other, (panels, in, WIDTH). `in_panels` in specbench/models/products.py has an example. A
// panel is read from memory once, in order, and multiplied with up to ROWS rows of x at a time.
//
// Order of sums. Output j of a row is ((x[0] w[j,0] + x[1] w[j,1]) + x[2] w[j,2]) + ..., one fused multiply-add per input, in
// one lane of a vector register. Codes of 8 and 4 bits are summed in the same way within each group of inputs, and the groups
// are added in their order. In a product, no sum is split over lanes, threads or blocks. So the bits of an output depend
// neither on the number of rows, nor on the number of threads, nor on the width of the processor's vectors: a block that
// verifies a draft gives a token the same score as decoding without drafts.
//
// The interface is plain C, loaded by ctypes (__init__.py): this file needs neither Python's nor torch's headers.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <sched.h>
#include <vector>

// Select numbers of two vectors of four, counted from 0 to 7.
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Places{__VA_ARGS__})
#endif

namespace {

typedef float Lanes __attribute__((vector_size(64)));  // 16 numbers: sums over lanes have one order on every processor
typedef int32_t Integers __attribute__((vector_size(64)));
typedef float Four __attribute__((vector_size(16)));
typedef int32_t Places __attribute__((vector_size(16)));
constexpr long LANES = 16;
constexpr long QUERIES = 16;  // that attention reads the cache for at once
constexpr long POSITIONS = 64;  // whose values attention adds at once
constexpr int SPINS = 4096;   // until a waiting thread yields its processor

// A matrix in panels, and its bias (out) in float32 or null.
//
// With `bits` 32 and 16, numbers are float32 and bfloat16. With 8 and 4 they are codes: signed bytes, or four bits from 0 to
// 15 that stand for -8 to 7. A weight is its code times the scale of its group of inputs, plus the group's zero, which may be
// null: (panels, groups, WIDTH) each, of the form `scales`. Outputs j and j + WIDTH / 2 of a panel are neighbors in bfloat16,
// and share a byte with 4 bits, j in the low half.
//
// Unless `block` is 0, each row of x is rounded to 8 bits in blocks of so many inputs, and codes are multiplied as integers. The
// codes of four inputs of an output are then neighbors: (panels, in / 4, WIDTH, 4).
struct Matrix {
    const void* panels;
    const float* bias;
    const void *scale, *zero;
    int64_t in, out, group, bits, scales, block;
};

enum Scales { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

// A decoder layer. A null norm is left out, as in the first layer of an EAGLE head. `head_norm` (heads of
// queries and keys, dim) is null unless queries and keys are normalized.
struct Layer {
    Matrix qkv, out, up, down;
    const float *norm, *norm_mlp, *head_norm;
    float scale, head_eps;
    int32_t rotates;
    int64_t window;  // 0: every position
};

// One forward of n tokens, which the cache holds from `first` on. A layer's cache has its keys, then its values:
// (2 * kv_heads, capacity, dim), in bfloat16 if `is_bfloat16`. Everything else is in float32.
struct Forward {
    const Layer* layers;
    int64_t count, hidden, heads, kv_heads, dim, rotary, wide;
    const float* norm;  // of the output; null leaves it out
    float eps;
    float* x;    // (n, hidden): input of the first layer, overwritten
    float* out;  // (n, hidden)
    int64_t n, first, total;
    void* cache;
    int64_t capacity, is_bfloat16;
    const float *cos, *sin;  // (n, rotary); sin has the sign of its half
    const float* const* masks;  // of each layer, (n, total), added to the scores of a tree; null for a chain
    float* const* inputs;  // of each layer, where its input (n, hidden) is copied to, or null; null for no copies
    float* shared;           // scratch of all threads, see `shared_size`
    float* own;              // scratch of each thread, see `own_size`
};

// One product of x (n, in) with a matrix, plus a residual (n, out) unless it is null: y (n, out), which may be the residual.
// All are float32; with a matrix of 16 bits all are bfloat16.
struct Product {
    const Matrix* matrix;
    const void* x;
    int64_t n;
    const void* residual;
    void* y;
};

struct Team {
    std::atomic<int> size{1}, arrived{0}, phase{0};

    void wait() {
        if (size == 1) return;
        int now = phase.load(std::memory_order_acquire);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
            arrived.store(0, std::memory_order_relaxed);
            phase.store(now + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; phase.load(std::memory_order_acquire) == now; spins++)
            if (spins > SPINS) sched_yield();
    }
};

struct Range {
    long begin, end;
};

inline Range part_of(long count, int id, int size) { return {count * id / size, count * (id + 1) / size}; }

inline long rounded(long count) { return (count + LANES - 1) / LANES * LANES; }

inline long wider(long a, long b) { return a > b ? a : b; }

// Return the size in floats of the scratch buffer that all threads share: queries, keys and values, attention's output, gate
// and up, gated.
inline long shared_size(const Forward& f) {
    return f.n * ((2 * f.heads + 2 * f.kv_heads) * f.dim + 3 * f.wide);
}

// Return the size in floats of the scratch buffer of one thread: normalized rows, or attention's scores, sums and outputs.
inline long own_size(const Forward& f) {
    long group = f.heads / f.kv_heads, queries = wider(QUERIES, group);
    return wider(f.n * f.hidden, queries * (rounded(f.total + LANES) + 1 + f.dim));
}

// OpenMP's functions of the library that torch has loaded, so that both share one pool of threads. Null without it.
using Body = void (*)(void*);
void (*gomp_parallel)(Body, void*, unsigned, unsigned) = nullptr;
int (*omp_thread)() = nullptr;
int (*omp_size)() = nullptr;

struct Call {
    void (*run)(const void* work, Team& team, int id);
    const void* work;
    Team team;
};

void enter(void* data) {
    Call& call = *static_cast<Call*>(data);
    call.team.size = omp_size();  // OpenMP may give fewer threads than requested; all of them store the same number
    call.run(call.work, call.team, omp_thread());
}

// Run work on a team of threads; on this thread alone within another parallel region.
void together(void (*run)(const void*, Team&, int), const void* work, int threads) {
    Call call{run, work, {}};
    if (threads > 1 && gomp_parallel && omp_size() == 1) {
        gomp_parallel(enter, &call, threads, 0);
    } else {
        run(work, call.team, 0);
    }
}

}  // namespace

#define LEVEL avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define VECTOR 8
#define ROWS 6
#include "products.inc"
#include "layers.inc"
#undef LEVEL
#undef TARGET
#undef VECTOR
#undef ROWS
#define LEVEL avx512
#define TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#define VECTOR 16
#define ROWS 8
#include "products.inc"
#include "layers.inc"

namespace {

struct Functions {
    const char* name;
    long width;
    void (*product)(const void*, Team&, int);
    void (*forward)(const void*, Team&, int);
};

const Functions LEVELS[] = {
    {"avx512", avx512::WIDTH, avx512::product, avx512::forward},
    {"avx2", avx2::WIDTH, avx2::product, avx2::forward},
};

bool supports(const char* name) {
    __builtin_cpu_init();
    bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (!strcmp(name, "avx2")) return has_avx2;
    return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

extern "C" {

// Set OpenMP's functions; null for one thread.
void specbench_threads(void* parallel, void* thread, void* size) {
    gomp_parallel = reinterpret_cast<void (*)(Body, void*, unsigned, unsigned)>(parallel);
    omp_thread = reinterpret_cast<int (*)()>(thread);
    omp_size = reinterpret_cast<int (*)()>(size);
}

// Return the number of a set of instructions, counted from the fastest; -1 if this processor does not have it.
int specbench_level(const char* name) {
    for (int i = 0; i < static_cast<int>(sizeof LEVELS / sizeof *LEVELS); i++)
        if (!strcmp(LEVELS[i].name, name) && supports(name)) return i;
    return -1;
}

// Return the outputs per panel.
int64_t specbench_width(int level) { return LEVELS[level].width; }

// Multiply x (n, in) with a matrix: see `Product`.
void specbench_product(
    int level, const Matrix* matrix, const void* x, int64_t n, const void* residual, void* y, int threads
) {
    Product work{matrix, x, n, residual, y};
    together(LEVELS[level].product, &work, threads);
}

// Return the sizes in floats of a forward's scratch buffers: of all threads together, and of each.
int64_t specbench_shared(const Forward* f) { return shared_size(*f); }
int64_t specbench_own(const Forward* f) { return own_size(*f); }

// Run the decoder layers, and write their keys and values into the cache.
void specbench_forward(int level, const Forward* f, int threads) { together(LEVELS[level].forward, f, threads); }

}  // extern "C"
