// qsa_bench: host time of one run's selection inputs, from the tracked prefix and by the scan of the cells.
//
// What is timed: one Tracker::select() of `queries` tokens at the end of a sequence that fills its stream, bias form
// "count", rank policy. Guarded: the prefix holds everything before the run; between two repeats the run is rolled
// back, untimed. General: the same tracker after a change of its cells, which makes it scan. Both give the same inputs,
// or the program ends with 1. What is not timed: taking cells, masks, and writing the inputs to a device. Medians of
// std::chrono::steady_clock over the repeats. --steps prints the mapping steps of one decode step instead.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "outlet.h"
#include "qsa/qsa.h"

namespace {

using namespace assay::qsa;
using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "qsa_bench [--repeats 101] | qsa_bench --steps\n"
    "Guarded and general host mapping over 12 shapes, in microseconds; or exact mapping steps by context.\n";

// A sequence with n_own cells in a stream of n_cells, all of them text from position 0.
struct Sequence {
    Sequence(uint32_t n_cells, uint32_t n_own) : t(n_cells, kFree), sets(n_cells) {
        for (uint32_t cell = 0; cell < n_own; ++cell) {
            t[cell] = static_cast<int32_t>(cell);
            sets[cell].set(0);
            rows.push_back({cell, {t[cell], t[cell], t[cell]}});
        }
    }
    Cells cells() const {
        return {static_cast<uint32_t>(t.size()), static_cast<uint32_t>(rows.size()), t.data(), t.data(), t.data(),
                sets.data()};
    }

    std::vector<int32_t> t;  // text: y and x are the same
    std::vector<Sequences> sets;
    std::vector<Row> rows;
};

std::vector<int32_t> inputs(const Selection& selection) {
    std::vector<int32_t> all;
    for (std::span<const int32_t> part : {selection.own_cells, selection.block_cells, selection.visible_cells,
                                          selection.visible_blocks, selection.tail_cells}) {
        all.insert(all.end(), part.begin(), part.end());
    }
    for (const Coordinates& at : selection.block_at) all.insert(all.end(), {at.t, at.y, at.x});
    return all;
}

double median_us(std::vector<double>& samples) {
    std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
    return samples[samples.size() / 2];
}

struct Timed {
    double us;
    std::vector<int32_t> inputs;
};

template <class Prepare>
Timed measure(Tracker& tracker, const Cells& cells, std::span<const Row> rows, int n_repeats, Route route,
              Prepare prepare) {
    std::vector<double> samples;
    for (int i = 0; i < n_repeats; ++i) {
        prepare();
        const auto start = Clock::now();
        tracker.select(cells, rows);
        samples.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
        if (tracker.selection().route != route) {
            std::fprintf(stderr, "qsa_bench: the run took the route %s (%s)\n", name(tracker.selection().route),
                         name(tracker.selection().reason));
            std::exit(1);
        }
        tracker.computed();
    }
    return {median_us(samples), inputs(tracker.selection())};
}

int print_times(int n_repeats) {
    std::printf("| cells | queries | tail | general, us | guarded, us | general / guarded |\n");
    std::printf("|---|---|---|---|---|---|\n");
    bool is_faster = true;
    for (uint32_t n_cells : {8448U, 65792U}) {
        for (uint32_t n_queries : {1U, 7U, 512U}) {
            for (uint32_t n_tail : {0U, 3U}) {
                const Sequence sequence(n_cells, n_cells - 4 + n_tail);
                const auto rows = std::span<const Row>(sequence.rows);
                const auto run = rows.last(n_queries);
                Tracker tracker(0, 4);
                tracker.select(sequence.cells(), rows);
                tracker.computed();
                const Timed guarded = measure(tracker, sequence.cells(), run, n_repeats, Route::Guarded,
                                              [&] { tracker.truncate(run[0].at.t); });
                const Timed general = measure(tracker, sequence.cells(), run, n_repeats, Route::General,
                                              [&] { tracker.changed(Change::Restored); });
                if (guarded.inputs != general.inputs) {
                    std::fprintf(stderr, "qsa_bench: the two paths differ\n");
                    return 1;
                }
                is_faster = is_faster && guarded.us < general.us;
                std::printf("| %u | %u | %u | %.2f | %.2f | %.1f |\n", n_cells, n_queries, n_tail, general.us,
                            guarded.us, general.us / guarded.us);
            }
        }
    }
    std::printf("guarded is faster in %s\n", is_faster ? "all twelve" : "NOT all of them");
    return is_faster ? 0 : 1;
}

int print_steps() {
    std::printf("| context | guarded: steps of 8 decode steps | general: steps of 8 decode steps |\n|---|---|---|\n");
    for (uint32_t n_own : {8192U, 65536U, 262144U, 1048576U}) {
        const Sequence sequence(n_own + 8, n_own + 8);
        const auto rows = std::span<const Row>(sequence.rows);
        uint64_t steps[2];
        for (bool is_scanned : {false, true}) {
            Tracker tracker(0, 4);
            tracker.select(sequence.cells(), rows);
            tracker.truncate(static_cast<int32_t>(n_own));
            tracker.reset_counters();
            for (uint32_t i = 0; i < 8; ++i) {
                if (is_scanned) tracker.changed(Change::Restored);
                tracker.select(sequence.cells(), rows.subspan(n_own + i, 1));
            }
            steps[is_scanned] = tracker.counters().n_mapping_steps;
        }
        std::printf("| %u | %llu | %llu |\n", n_own, static_cast<unsigned long long>(steps[0]),
                    static_cast<unsigned long long>(steps[1]));
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    int n_repeats = 101;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--steps") == 0) return assay::written("qsa_bench", print_steps());
        if (std::strcmp(argv[i], "--repeats") == 0 && i + 1 < argc && std::atoi(argv[i + 1]) > 0) {
            n_repeats = std::atoi(argv[++i]);
            continue;
        }
        const bool is_help = std::strcmp(argv[i], "--help") == 0;
        std::fputs(kUsage, is_help ? stdout : stderr);
        return is_help ? assay::written("qsa_bench", 0) : 2;
    }
    return assay::written("qsa_bench", print_times(n_repeats));
}
