// The inputs of a qwen4exp graph, from selections, cells and recurrent rows.
#include <algorithm>
#include <numeric>

#include "failure.h"
#include "qwen_evaluator.h"

namespace assay {
namespace {

constexpr float kHidden = -1e30F;

}  // namespace

template <class Number>
void QwenEvaluator::send(ggml_tensor* input, const std::vector<Number>& numbers) {
    // An input that nothing reads has no memory.
    if (input == nullptr || (input->buffer == nullptr && input->data == nullptr)) return;
    ggml_backend_tensor_set(input, numbers.data(), 0, numbers.size() * sizeof(Number));
    parts_.work.n_mapping_steps += numbers.size();
}

void QwenEvaluator::set_inputs(const QwenUbatch& ubatch) {
    set_embeddings(ubatch);
    set_positions(ubatch);
    if (graph_.ple != nullptr) set_ple(ubatch);
    if (graph_.outputs != nullptr) send(graph_.outputs, ubatch.outputs);
    for (size_t i = 0; i < ubatch.runs.size(); ++i) {
        const QwenRun& run = graph_.shape.runs[i];
        const QwenRunInputs& inputs = graph_.runs[i];
        const qsa::Selection& selection = parts_.cache.tracker(run.sequence).selection();
        set_pooling(run.sequence, selection, first_pooled_[i], run.n_pooled, inputs);
        set_selection(run, inputs);
        if (parts_.recurrent != nullptr) set_recurrent(run, ubatch.runs[i].plan, inputs);
    }
}

void QwenEvaluator::set_embeddings(const QwenUbatch& ubatch) {
    numbers_.clear();
    reals_.clear();
    std::vector<int32_t> sources;
    const auto n_text = static_cast<int32_t>(graph_.shape.n_tokens - graph_.shape.n_embeddings);
    int32_t n_embeddings = 0;
    for (size_t i = 0; i < ubatch.tokens.size(); ++i) {
        if (ubatch.tokens[i] >= 0) {
            sources.push_back(static_cast<int32_t>(numbers_.size()));
            numbers_.push_back(ubatch.tokens[i]);
        } else {
            sources.push_back(n_text + n_embeddings++);
            reals_.insert(reals_.end(), ubatch.embeddings[i], ubatch.embeddings[i] + s_.n_embd);
        }
    }
    send(graph_.tokens, numbers_);
    send(graph_.embeddings, reals_);
    send(graph_.sources, sources);
    if (graph_.hidden_in == nullptr) return;
    for (size_t i = 0; i < ubatch.hidden.size(); ++i) {
        ggml_backend_tensor_set(graph_.hidden_in, ubatch.hidden[i], i * graph_.hidden_in->nb[1],
                                s_.hcn() * sizeof(float));
    }
}

void QwenEvaluator::set_positions(const QwenUbatch& ubatch) {
    const size_t n = ubatch.tokens.size();
    numbers_.resize(4 * n);
    long_numbers_.resize(n);
    size_t i = 0;
    for (const QwenUbatch::Run& run : ubatch.runs) {
        for (const qsa::Row& row : run.rows) {
            numbers_[i] = numbers_[3 * n + i] = row.at.t;
            numbers_[n + i] = row.at.y;
            numbers_[2 * n + i] = row.at.x;
            long_numbers_[i] = parts_.cache.cells.row(run.sequence, row.cell);
            ++i;
        }
    }
    send(graph_.positions, numbers_);
    send(graph_.rows, long_numbers_);
}

void QwenEvaluator::set_ple(const QwenUbatch& ubatch) {
    const Cells& cells = parts_.cache.cells;
    ple_rows_.clear();
    for (const QwenUbatch::Run& run : ubatch.runs) {
        const std::vector<uint32_t>& order = cells.order(run.sequence);
        // The run stands at the end of its sequence, so predecessors are found by rank, image cells among them.
        size_t rank = order.size() - run.rows.size();
        for (size_t i = 0; i < run.rows.size(); ++i, ++rank) {
            context_.clear();
            for (size_t back = 0; back < s_.ple.n_gram && back <= rank; ++back)
                context_.push_back(cells.token(run.sequence, order[rank - back]));
            parts_.ple->hash(context_, ple_rows_);
        }
    }
    reals_.resize(ple_rows_.size() * s_.ple.row_width);
    const PleTable::Use before = parts_.ple->use();
    parts_.ple->gather(ple_rows_, reals_.data());
    const PleTable::Use after = parts_.ple->use();
    parts_.work.n_ple_rows += after.n_rows - before.n_rows;
    parts_.work.n_ple_misses += after.n_misses - before.n_misses;
    ggml_backend_tensor_set(graph_.ple, reals_.data(), 0, reals_.size() * sizeof(float));
    parts_.work.n_mapping_steps += ple_rows_.size();
}

// Keys of the blocks from `first` on. Where the sequence has fewer, the rest goes to a row that nobody reads.
void QwenEvaluator::set_pooling(uint32_t sequence, const qsa::Selection& selection, uint32_t first, uint32_t n,
                                const QwenRunInputs& inputs) {
    const IndexedCache& cache = parts_.cache;
    const auto base = static_cast<int32_t>(cache.cells.row(sequence, 0));
    const int64_t row_base = int64_t{sequence} * cache.n_blocks_max();
    numbers_.assign(size_t{n} * s_.ratio, base);
    long_numbers_.assign(n, cache.spare_block());
    std::vector<int32_t> at(size_t{4} * n, 0);
    for (uint32_t i = 0; i < n && first + i < selection.n_blocks; ++i) {
        const uint32_t block = first + i;
        for (uint32_t j = 0; j < s_.ratio; ++j)
            numbers_[i * s_.ratio + j] = base + selection.block_cells[size_t{block} * s_.ratio + j];
        const Coordinates& where = selection.block_at[block];
        at[i] = at[3 * n + i] = where.t;
        at[n + i] = where.y;
        at[2 * n + i] = where.x;
        long_numbers_[i] = row_base + block;
    }
    send(inputs.pool_cells, numbers_);
    send(inputs.pool_at, at);
    send(inputs.pool_rows, long_numbers_);
}

void QwenEvaluator::set_selection(const QwenRun& run, const QwenRunInputs& inputs) {
    qsa::Tracker& tracker = parts_.cache.tracker(run.sequence);
    const qsa::Selection& selection = tracker.selection();
    if (run.is_masked) {
        const qsa::Masks& masks = tracker.masks();
        reals_.assign(masks.block_bias.begin(), masks.block_bias.end());
        send(inputs.block_bias, reals_);
        numbers_.assign(masks.block_of_cell.begin(), masks.block_of_cell.end());
        // A cell without a block is hidden by the cell mask; any column will do.
        std::replace(numbers_.begin(), numbers_.end(), -1, 0);
        send(inputs.block_of_cell, numbers_);
        numbers_.resize(run.n_viewed);
        std::iota(numbers_.begin(), numbers_.end(), static_cast<int32_t>(parts_.cache.cells.row(run.sequence, 0)));
        send(inputs.tail, numbers_);
        reals_.assign(masks.cell_mask.begin(), masks.cell_mask.end());
        for (float& value : reals_) value = std::max(value, kHidden);
        send(inputs.cell_mask, reals_);
        return;
    }
    const std::span<const int32_t> visible = run.is_sparse ? selection.visible_blocks : selection.visible_cells;
    reals_.assign(visible.begin(), visible.end());
    send(inputs.visible, reals_);
    if (!run.is_sparse) return;
    const auto base = static_cast<int32_t>(parts_.cache.cells.row(run.sequence, 0));
    numbers_.clear();
    reals_.clear();
    for (const int32_t cell : selection.tail_cells) {
        numbers_.push_back(base + std::max(cell, 0));
        reals_.push_back(cell < 0 ? kHidden : 0.0F);
    }
    send(inputs.tail, numbers_);
    send(inputs.tail_mask, reals_);
}

void QwenEvaluator::set_recurrent(const QwenRun& run, const RecurrentRows::Plan& plan, const QwenRunInputs& inputs) {
    const uint32_t n_heads = s_.n_value_heads;
    numbers_.clear();
    for (uint32_t h = 0; h < n_heads; ++h) numbers_.push_back(plan.from * static_cast<int32_t>(n_heads) + static_cast<int32_t>(h));
    send(inputs.state_from, numbers_);
    long_numbers_.clear();
    for (auto row = plan.to.rbegin(); row != plan.to.rend(); ++row) {
        for (uint32_t h = 0; h < n_heads; ++h) long_numbers_.push_back(int64_t{*row} * n_heads + h);
    }
    send(inputs.state_to, long_numbers_);
    set_history(s_.conv_kernel - 1, run, plan, inputs.conv);
    if (s_.ple.exists()) set_history(s_.ple.history(), run, plan, inputs.ple);
}

void QwenEvaluator::set_history(uint32_t n_past, const QwenRun& run, const RecurrentRows::Plan& plan,
                                const HistoryInputs& inputs) {
    const auto past = static_cast<int32_t>(n_past);
    numbers_.clear();
    for (int32_t i = 0; i < past; ++i) numbers_.push_back(plan.from * past + i);
    send(inputs.from, numbers_);
    numbers_.clear();
    long_numbers_.clear();
    for (size_t j = 0; j < plan.to.size(); ++j) {
        // After token i of the run, columns i + 1 to i + past of (past, run) are the last ones.
        const auto column = static_cast<int32_t>(run.n_tokens - plan.to.size() + j + 1);
        for (int32_t i = 0; i < past; ++i) {
            numbers_.push_back(column + i);
            long_numbers_.push_back(int64_t{plan.to[j]} * past + i);
        }
    }
    send(inputs.windows, numbers_);
    send(inputs.to, long_numbers_);
}

}  // namespace assay
