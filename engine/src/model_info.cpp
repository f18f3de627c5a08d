// What a loaded model says about itself.
#include <cstring>
#include <map>

#include "checksum.h"
#include "json_text.h"
#include "model.h"

namespace assay {

uint64_t hash_shapes(const GgufFile& file, const Hyperparameters& hyper) {
    Crc64 hash;
    const auto add_text = [&](const std::string& text) { hash.update(text.c_str(), text.size() + 1); };
    add_text(hyper.architecture);
    add_text(hyper.name);
    for (const GgufTensor& tensor : file.tensors()) {
        add_text(tensor.name);
        const auto type = static_cast<uint32_t>(tensor.type);
        hash.update(&type, sizeof type);
        hash.update(tensor.ne, sizeof tensor.ne);
    }
    return hash.value();
}

std::string describe_model(const Model& model) {
    const Hyperparameters& h = model.hyper();
    const GgufFile& file = model.file();
    JsonText json;
    json.open('{');
    json.field("architecture", h.architecture.c_str());
    json.field("name", h.name.c_str());
    json.field("n_vocab", h.n_vocab);
    json.field("n_ctx_train", h.n_ctx_train);
    json.field("n_embd", h.n_embd);
    json.field("n_layer", h.n_layer);
    json.field("n_ff", h.n_ff);
    json.field("n_head", h.n_head);
    json.field("n_head_kv", h.n_head_kv);
    json.field("n_head_size_k", h.n_head_size_k);
    json.field("n_head_size_v", h.n_head_size_v);
    json.field("n_rot", h.n_rot);
    json.field("rope_base", static_cast<double>(h.rope_base));
    json.field("norm_epsilon", static_cast<double>(h.norm_epsilon));
    json.field("n_params", model.weights().n_parameters());
    json.field("size_bytes", model.weights().bytes());
    json.key("file_type");
    if (const auto type = file.unsigned_value("general.file_type"))
        json.value(*type);
    else
        json.value(-1);
    std::map<std::string, uint64_t> types;
    for (const GgufTensor& tensor : file.tensors()) ++types[ggml_type_name(tensor.type)];
    json.key("tensor_types");
    json.open('{');
    for (const auto& [name, n] : types) json.field(name, n);
    json.close('}');
    json.key("weight_bytes_by_buffer");
    json.open('{');
    for (const auto& [name, bytes] : model.weights().placement()) json.field(name, bytes);
    json.close('}');
    const Tokenizer* tokenizer = model.tokenizer();
    json.field("tokenizer",
               tokenizer == nullptr ? "none" : file.text_value("tokenizer.ggml.model").value_or("").c_str());
    json.field("pre_tokenizer", file.text_value("tokenizer.ggml.pre").value_or("").c_str());
    json.field("bos", tokenizer == nullptr ? -1 : tokenizer->bos());
    json.field("eos", tokenizer == nullptr ? -1 : tokenizer->eos());
    const auto eot = file.unsigned_value("tokenizer.ggml.eot_token_id");
    json.field("eot", eot && *eot < h.n_vocab ? static_cast<int64_t>(*eot) : INT64_C(-1));
    json.field("add_bos", tokenizer != nullptr && tokenizer->add_bos());
    json.field("has_chat_template", model.chat_template() != nullptr);
    json.close('}');
    return json.text();
}

}  // namespace assay
