// Flags and environment of engine-server.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine.h"
#include "log.h"

namespace assay::server {

struct ServerSettings {
    std::string model;
    std::string host = "127.0.0.1";
    uint16_t port = 8080;         // 0: the system picks a free one
    uint32_t n_ctx = 0;           // cells of one slot when split, of all when unified; 0: the model's, at most 4096
    uint32_t n_slots = 1;
    uint32_t n_ubatch = 512;
    uint32_t n_threads = 0;       // generation; 0: one for each processor that this process may use
    uint32_t n_threads_batch = 0; // prefill; 0: as many as for generation
    int32_t kv_type = ASSAY_KV_F16;
    bool kv_unified = false;
    uint32_t n_draft = 0;         // most tokens drafted at a time; 0: no drafts
    int32_t draft_kv_type = ASSAY_KV_F16;
    uint32_t n_draft_vocab = 0;   // drafts are among the first ids of the vocabulary; 0: among all
    uint32_t ple_cache_mib = 64;  // decoded pages of the n-gram table
    bool flash_attention = true;
    bool use_mmap = true;
    int32_t n_gpu_layers = 0;
    uint32_t seed = 0xFFFFFFFF;   // of requests that name none; 0xFFFFFFFF: drawn for each
    std::string api_key;          // empty: no key is asked for
    std::string alias;
    std::string slot_save_path;   // empty: slots cannot be saved
    bool test_images = false;     // a route for prompts with images as embeddings
    LogFormat log_format = LogFormat::json;
    bool is_help = false;
    bool is_version = false;
};

// Flags win over the environment. Throws UsageError.
ServerSettings parse_settings(const std::vector<std::string>& arguments);
std::string usage_text();
std::string name_of_kv_type(int32_t kv_type);

}  // namespace assay::server
