// The C interface with C++ manners, for tests.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "engine.h"

namespace core {

struct Outcome {
    int status = ASSAY_OK;
    std::string error;
    explicit operator bool() const { return status == ASSAY_OK; }
};

// Runs a function of engine.h and keeps its status and text.
template <class Call>
Outcome outcome(Call call) {
    char error[512] = "untouched";
    Outcome result;
    result.status = call(error, sizeof error);
    result.error = error;
    return result;
}

class ModelHandle {
public:
    explicit ModelHandle(const std::string& path, assay_model_settings settings = assay_model_defaults()) {
        load = outcome(
            [&](char* error, size_t size) { return assay_model_load(path.c_str(), &settings, &model_, error, size); });
    }
    ~ModelHandle() { assay_model_free(model_); }
    ModelHandle(const ModelHandle&) = delete;
    ModelHandle& operator=(const ModelHandle&) = delete;
    const assay_model* get() const { return model_; }
    Outcome load;

private:
    assay_model* model_ = nullptr;
};

class SessionHandle {
public:
    SessionHandle(const ModelHandle& model, const assay_session_settings& settings)
        : n_vocab_(static_cast<size_t>(assay_model_n_vocab(model.get()))) {
        made = outcome([&](char* error, size_t size) {
            return assay_session_new(model.get(), &settings, &session_, error, size);
        });
    }
    ~SessionHandle() { assay_session_free(session_); }
    SessionHandle(const SessionHandle&) = delete;
    SessionHandle& operator=(const SessionHandle&) = delete;
    assay_session* get() const { return session_; }

    struct Entry {
        int32_t token;
        int32_t position;
        int32_t sequence;
        bool wants_logits = true;
    };

    Outcome decode(const std::vector<Entry>& entries, const volatile int* cancel = nullptr) {
        std::vector<int32_t> tokens;
        std::vector<int32_t> positions;
        std::vector<int32_t> sequences;
        std::vector<uint8_t> logits;
        for (const Entry& entry : entries) {
            tokens.push_back(entry.token);
            positions.push_back(entry.position);
            sequences.push_back(entry.sequence);
            logits.push_back(entry.wants_logits ? 1 : 0);
        }
        const assay_batch batch{static_cast<uint32_t>(entries.size()), tokens.data(), positions.data(),
                                sequences.data(), logits.data()};
        return outcome([&](char* error, size_t size) { return assay_decode(session_, &batch, cancel, error, size); });
    }
    // Decodes tokens after what the sequence has; logits of all.
    Outcome extend(const std::vector<int32_t>& tokens, int32_t sequence = 0) {
        std::vector<Entry> entries;
        int32_t position = assay_seq_last(session_, sequence) + 1;
        for (const int32_t token : tokens) entries.push_back({token, position++, sequence});
        return decode(entries);
    }
    std::vector<float> logits(uint32_t i) const {
        const float* row = assay_logits(session_, i);
        return row == nullptr ? std::vector<float>{} : std::vector<float>(row, row + n_vocab_);
    }
    Outcome remove(int32_t sequence, int32_t p0, int32_t p1) {
        return outcome(
            [&](char* error, size_t size) { return assay_seq_remove(session_, sequence, p0, p1, error, size); });
    }
    Outcome copy(int32_t source, int32_t target, int32_t p0 = 0, int32_t p1 = -1) {
        return outcome(
            [&](char* error, size_t size) { return assay_seq_copy(session_, source, target, p0, p1, error, size); });
    }
    Outcome keep(int32_t sequence) {
        return outcome([&](char* error, size_t size) { return assay_seq_keep(session_, sequence, error, size); });
    }
    Outcome shift(int32_t sequence, int32_t p0, int32_t p1, int32_t delta) {
        return outcome(
            [&](char* error, size_t size) { return assay_seq_shift(session_, sequence, p0, p1, delta, error, size); });
    }
    Outcome fill(int32_t sequence, uint32_t n) {
        return outcome([&](char* error, size_t size) { return assay_fill_zero(session_, sequence, n, error, size); });
    }
    int32_t last(int32_t sequence) const { return assay_seq_last(session_, sequence); }
    uint32_t cells(int32_t sequence) const { return assay_seq_cells(session_, sequence); }
    std::vector<uint8_t> save(int32_t sequence) const {
        std::vector<uint8_t> data(assay_state_size(session_, sequence));
        size_t written = 0;
        const Outcome saved = outcome([&](char* error, size_t size) {
            return assay_state_save(session_, sequence, data.data(), data.size(), &written, error, size);
        });
        if (!saved || written != data.size()) return {};
        return data;
    }
    Outcome restore(int32_t sequence, const std::vector<uint8_t>& data) {
        return outcome([&](char* error, size_t size) {
            return assay_state_restore(session_, sequence, data.data(), data.size(), error, size);
        });
    }
    assay_work work() const {
        assay_work work{};
        work.struct_size = sizeof work;
        assay_work_read(session_, &work);
        return work;
    }
    Outcome made;

private:
    assay_session* session_ = nullptr;
    size_t n_vocab_;
};

inline assay_session_settings small_settings() {
    assay_session_settings settings = assay_session_defaults();
    settings.n_ctx = 96;
    settings.n_ubatch = 64;
    settings.n_threads = 1;  // tests run beside each other; spinning threads would only wait for each other
    settings.n_threads_batch = 1;
    settings.kv_type = ASSAY_KV_F32;
    return settings;
}

// Tokens that depend on i and salt only.
inline std::vector<int32_t> some_tokens(size_t n, uint32_t salt = 0) {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>((i * 37 + salt * 101 + 11) % 256));
    return tokens;
}

// Largest difference of two rows in units of the spread of the first: 1e-3 is far below what sampling sees.
template <class A, class B>
double distance(const std::vector<A>& a, const std::vector<B>& b) {
    if (a.size() != b.size() || a.empty()) return INFINITY;
    double mean = 0;
    for (const A value : a) mean += static_cast<double>(value) / static_cast<double>(a.size());
    double spread = 0;
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        spread += std::pow(static_cast<double>(a[i]) - mean, 2);
        const double difference = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
        if (!(difference <= largest)) largest = difference;  // keeps NaN
    }
    return largest / std::sqrt(spread / static_cast<double>(a.size()));
}

}  // namespace core
