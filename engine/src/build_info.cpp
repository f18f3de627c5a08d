// The only translation unit that knows the layout salt and the list of this library's faults, so that changing them
// recompiles this file (and the one that holds the fault) and relinks the rest. Block selection names its own.
#include "build_info.h"

#include <exception>
#include <string>

#include "devices.h"
#include "engine.h"
#include "json_text.h"
#include "qsa/qsa.h"

#ifndef ASSAY_LAYOUT_SALT
#define ASSAY_LAYOUT_SALT 0
#endif
#ifndef ASSAY_FAULTS_TEXT
#define ASSAY_FAULTS_TEXT ""
#endif
#ifndef ASSAY_VERSION
#define ASSAY_VERSION "unknown"
#endif
#ifndef ASSAY_SANITIZE_TEXT
#define ASSAY_SANITIZE_TEXT ""
#endif

namespace assay {
namespace {

void write_faults(JsonText& json) {
    json.key("faults");
    json.open('[');
    const std::string faults = std::string(ASSAY_FAULTS_TEXT) + "," + qsa::faults();
    for (size_t begin = 0; begin < faults.size();) {
        size_t end = faults.find(',', begin);
        if (end == std::string::npos) end = faults.size();
        if (end > begin) json.value(faults.substr(begin, end - begin).c_str());
        begin = end + 1;
    }
    json.close(']');
}

void write_back_ends(JsonText& json) {
    json.key("back_ends");
    json.open('[');
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        json.open('{');
        json.field("name", ggml_backend_dev_name(device));
        json.field("registry", ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)));
        json.close('}');
    }
    json.close(']');
    json.key("cpu_features");
    json.open('[');
    const auto features = devices().cpu_function<ggml_backend_get_features_t>("ggml_backend_get_features");
    if (features != nullptr) {
        ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(devices().cpu);
        for (const ggml_backend_feature* feature = features(registry); feature->name != nullptr; ++feature)
            json.value(feature->name);
    }
    json.close(']');
    json.key("cpu_weight_buffers");
    json.open('[');
    for (ggml_backend_buffer_type_t type : devices().cpu_extra) json.value(ggml_backend_buft_name(type));
    json.close(']');
}

std::string describe() {
    JsonText json;
    json.open('{');
    json.field("engine", "assay");
    json.field("version", ASSAY_VERSION);
    json.field("abi", ASSAY_ENGINE_ABI);
    json.field("ggml_version", ggml_version());
    json.field("ggml_commit", ggml_commit());
    json.field("compiler", __VERSION__);
    json.field("sanitizers", ASSAY_SANITIZE_TEXT);
    json.field("layout_salt", static_cast<uint64_t>(ASSAY_LAYOUT_SALT));
    write_faults(json);
    json.field("qsa_path", qsa::path());
    try {
        write_back_ends(json);
    } catch (const std::exception& error) { json.field("error", error.what()); }
    json.close('}');
    return json.text();
}

}  // namespace

const char* build_info() {
    static const std::string line = describe();
    return line.c_str();
}

}  // namespace assay
