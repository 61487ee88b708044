// The order in which the kernels of the ladder compute tiles, and the ring through which bulk copies bring them.

// Returns the place of tile number `tile` of `high` × `wide`, in tiles. `band` rows of tiles are computed column by column,
// so that their inputs stay in the L2.
struct Place {
    u32 row, column;
};
static __device__ __forceinline__ Place place_of(u32 tile, u32 high, u32 wide, u32 band) {
    const u32 first = tile / (band * wide) * band, in_band = tile - first * wide;
    const u32 rows = high - first < band ? high - first : band;
    return {first + in_band % rows, in_band / rows};
}

#if BULK || GB_TCGEN05
// A ring of COUNT places in shared memory. Its barriers say whether a place is full and may be read, or empty and may be
// written. Threads that read and threads that write have a ring each, with the same barriers.
template <u32 COUNT>
struct Ring {
    u64 *full, *empty;
    u32 stage = 0, parity = 0;

    __device__ __forceinline__ Ring(u64* of_full, u64* of_empty) : full(of_full), empty(of_empty) {}
    // Prepares the barriers, by one thread; a place is empty after as many arrivals as it has `readers`.
    __device__ __forceinline__ void begin(u32 readers) const {
        for (u32 place = 0; place < COUNT; ++place) {
            gb_barrier_init(full + place);
            gb_barrier_init(empty + place, readers);
        }
    }
    __device__ __forceinline__ void next() {
        if (++stage == COUNT) stage = 0, parity ^= 1;
    }
    // Copies the parts of every tile of this block, DEEP inner elements of two bytes each, to `places`: TALL rows of A and
    // then BROAD rows of B. By one thread; `high` × `wide` tiles are in `band` rows as place_of orders them.
    template <u32 TALL, u32 BROAD, u32 DEEP>
    __device__ __forceinline__ void load_tiles(
        u8* places, const GbTensorMap* map_a, const GbTensorMap* map_b, u32 high, u32 wide, u32 parts, u32 band) {
        const u32 bytes = (TALL + BROAD) * DEEP * 2;
        for (u32 tile = blockIdx.x; tile < high * wide; tile += gridDim.x) {
            const Place place = place_of(tile, high, wide, band);
            for (u32 part = 0; part < parts; ++part, next()) {
                u8* const there = places + stage * bytes;
                gb_barrier_await(empty + stage, parity ^ 1);
                gb_barrier_expect(full + stage, bytes);
                gb_tensor_load(there, map_a, part * DEEP, place.row * TALL, full + stage);
                gb_tensor_load(there + TALL * DEEP * 2, map_b, part * DEEP, place.column * BROAD, full + stage);
            }
        }
    }
};
#endif
