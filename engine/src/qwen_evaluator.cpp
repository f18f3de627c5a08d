#include "qwen_evaluator.h"

#include <algorithm>

#include "failure.h"

namespace assay {
namespace {

// How far views are rounded up, so that the graph of one step serves the next ones.
constexpr uint32_t kRankStep = 64;
constexpr uint32_t kBlockStep = 256;
// Blocks whose keys are pooled at once when many are stale.
constexpr uint32_t kPoolStep = 1024;

uint32_t round_up(uint32_t value, uint32_t step) { return (value + step - 1) / step * step; }

}  // namespace

QwenEvaluator::QwenEvaluator(const Parts& parts, uint32_t n_ubatch, bool wants_hidden)
    : parts_(parts),
      s_(parts.model.qwen()->shape()),
      executor_(parts.model, parts.settings, parts.work,
                qwen_graph_nodes(s_, largest_shape(n_ubatch, wants_hidden), graph_context().plain_operators,
                                 parts.settings.strip_bytes)) {
    const QwenGraphShape largest = largest_shape(n_ubatch, wants_hidden);
    const QwenGraph graph = build_qwen_graph(graph_context(), largest);
    executor_.reserve(graph.nodes, largest.n_tokens);
}

QwenGraphContext QwenEvaluator::graph_context() const {
    const assay_session_settings& settings = parts_.settings;
    return {parts_.model,
            parts_.cache,
            parts_.recurrent,
            parts_.output,
            settings.flash_attention,
            settings.plain_operators || parts_.model.uses_accelerator(),
            settings.strip_bytes,
            std::max(settings.n_threads, settings.n_threads_batch),
            capture_};
}

QwenGraphShape QwenEvaluator::largest_shape(uint32_t n_ubatch, bool wants_hidden) const {
    QwenGraphShape shape;
    shape.is_draft = parts_.recurrent == nullptr;
    shape.n_tokens = n_ubatch;
    shape.n_outputs = std::min(parts_.settings.n_seq, n_ubatch);
    shape.wants_hidden = wants_hidden;
    // Sparse attention over the whole depth beside dense attention over what is dense at most.
    const uint32_t n_blocks = parts_.cache.n_blocks_max();
    QwenRun run;
    run.n_tokens = n_ubatch;
    run.is_sparse = parts_.cache.cells.n_cells() > s_.dense_cells();
    run.n_viewed = run.is_sparse ? n_blocks : parts_.cache.n_own_max();
    run.n_tail = s_.ratio - 1;
    run.n_pooled = std::max(n_ubatch / s_.ratio + 2, kPoolStep);
    run.n_written = parts_.recurrent == nullptr ? 0 : parts_.recurrent->n_written(n_ubatch);
    shape.runs.push_back(run);
    // Each further sequence brings nodes of its own, and next to no memory.
    for (uint32_t i = 1; i < std::min(parts_.settings.n_seq, n_ubatch); ++i) {
        run.sequence = i;
        run.n_tokens = 1;
        run.n_pooled = 2;
        run.n_written = parts_.recurrent == nullptr ? 0 : 1;
        shape.n_tokens += 1;
        shape.runs.push_back(run);
    }
    return shape;
}

void QwenEvaluator::count(uint32_t sequence) {
    qsa::Tracker& tracker = parts_.cache.tracker(sequence);
    const qsa::Counters& counters = tracker.counters();
    assay_work& work = parts_.work;
    work.n_mapping_steps += counters.n_mapping_steps;
    work.n_cells_visited += counters.n_cells_visited;
    work.n_scans += counters.n_scans;
    work.n_runs_guarded += counters.runs[static_cast<size_t>(qsa::Route::Guarded)];
    work.n_runs_general += counters.runs[static_cast<size_t>(qsa::Route::General)];
    work.n_runs_masked += counters.runs[static_cast<size_t>(qsa::Route::Masked)];
    for (size_t i = 0; i < std::size(counters.reasons); ++i) parts_.cache.reasons[i] += counters.reasons[i];
    tracker.reset_counters();
}

// What the graph of this run looks like. Brings the tables and all pooled keys but the newest up to date.
QwenRun QwenEvaluator::map(const QwenUbatch::Run& source) {
    const auto n = static_cast<uint32_t>(source.rows.size());
    IndexedCache& cache = parts_.cache;
    qsa::Tracker& tracker = cache.tracker(source.sequence);
    const qsa::Selection& selection = tracker.select(cache.cells.view(source.sequence), source.rows);
    count(source.sequence);
    parts_.work.n_mapping_steps += cache.write_tables(source.sequence, selection);
    QwenRun run;
    run.sequence = source.sequence;
    run.n_tokens = n;
    run.n_written = parts_.recurrent == nullptr ? 0 : parts_.recurrent->n_written(n);
    // Blocks with a member in this run are pooled by its graph: at most so many, and one more to begin with.
    run.n_pooled = (n + s_.ratio - 1) / s_.ratio + 1;
    const uint32_t n_late = std::min(run.n_pooled, selection.n_blocks);
    uint32_t first = selection.n_blocks - n_late;
    if (selection.first_stale_block < first)
        pool_early(source.sequence, selection, selection.first_stale_block, first);
    first_pooled_.push_back(first);
    if (selection.route == qsa::Route::Masked) {
        const qsa::Masks& masks = tracker.masks();
        run.is_masked = true;
        run.n_columns = masks.n_columns;
        run.n_viewed = masks.n_window;
        return run;
    }
    run.is_sparse = tracker.policy() != qsa::Policy::Rank || selection.n_own > s_.dense_cells();
    if (run.is_sparse) {
        run.n_tail = static_cast<uint32_t>(selection.tail_cells.size() / n);
        run.n_viewed = std::min(round_up(std::max(selection.n_blocks, s_.kept_blocks()), kBlockStep), cache.n_blocks_max());
    } else {
        run.n_viewed = std::min(round_up(selection.n_own, kRankStep), cache.n_own_max());
    }
    return run;
}

void QwenEvaluator::pool_early(uint32_t sequence, const qsa::Selection& selection, uint32_t first, uint32_t last) {
    graph_ = QwenGraph{};
    for (uint32_t at = first; at < last; at += kPoolStep) {
        const uint32_t n = std::min(kPoolStep, last - at);
        const QwenGraph graph = build_pooling_graph(graph_context(), n);
        executor_.allocate(graph.nodes, n);
        set_pooling(sequence, selection, at, n, graph.runs.front());
        executor_.compute(graph.nodes, false);
        parts_.work.n_graphs += 1;
        parts_.work.n_graph_nodes += graph.cost.n_nodes;
    }
}

void QwenEvaluator::take_captures() {
    if (parts_.ple != nullptr && capture_->wants("ple.rows"))
        capture_->add("ple.rows", ple_rows_, s_.ple.n_heads());
    for (const QwenCapture& captured : graph_.captures) capture_->add(captured.name, captured.tensor);
}

void QwenEvaluator::use_graph(const QwenGraphShape& shape) {
    if (graph_.nodes != nullptr && graph_.shape == shape) {
        parts_.work.n_graph_reuses += 1;
        return;
    }
    graph_ = QwenGraph{};
    QwenGraph fresh = build_qwen_graph(graph_context(), shape);
    executor_.allocate(fresh.nodes, shape.n_tokens);
    graph_ = std::move(fresh);
}

void QwenEvaluator::evaluate(const QwenUbatch& ubatch) {
    QwenGraphShape shape;
    shape.is_draft = parts_.recurrent == nullptr;
    shape.n_tokens = ubatch.n_tokens();
    shape.n_embeddings = static_cast<uint32_t>(std::count(ubatch.tokens.begin(), ubatch.tokens.end(), -1));
    shape.n_outputs = static_cast<uint32_t>(ubatch.outputs.size());
    shape.wants_hidden = ubatch.wants_hidden;
    const bool is_captured = capture_ != nullptr && capture_->is_on();
    // A graph that is captured keeps tensors alive that another one overwrites.
    if (is_captured || was_captured_) graph_ = QwenGraph{};
    was_captured_ = is_captured;
    first_pooled_.clear();
    for (const QwenUbatch::Run& run : ubatch.runs) shape.runs.push_back(map(run));
    use_graph(shape);
    set_inputs(ubatch);
    executor_.compute(graph_.nodes, shape.n_tokens <= parts_.settings.n_seq);
    for (const QwenUbatch::Run& run : ubatch.runs) parts_.cache.tracker(run.sequence).computed();
    if (is_captured) take_captures();
    assay_work& work = parts_.work;
    work.n_graphs += 1;
    work.n_graph_nodes += graph_.cost.n_nodes;
    work.n_flops += graph_.cost.n_flops;
    work.n_weight_bytes_read += graph_.cost.n_weight_bytes_read;
    if (!shape.is_draft) work.n_tokens_evaluated += shape.n_tokens;
}

}  // namespace assay
