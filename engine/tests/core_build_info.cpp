// assay_build_info is one line of JSON that names what an arm's identity needs.
#include <boost/json/src.hpp>

#include "core_check.h"
#include "engine.h"
#include "json_text.h"

namespace {

void check_fields() {
    const std::string text = assay_build_info();
    CHECK(text.find('\n') == std::string::npos);
    CHECK_EQUAL(assay_build_info(), static_cast<const void*>(assay_build_info()));  // static storage
    const boost::json::value parsed = boost::json::parse(text);
    const boost::json::object& info = parsed.as_object();
    CHECK_EQUAL(info.at("abi").as_int64(), ASSAY_ENGINE_ABI);
    for (const char* key : {"engine", "version", "ggml_version", "ggml_commit", "compiler", "sanitizers"})
        CHECK(info.at(key).is_string());
    CHECK(info.at("layout_salt").is_int64());
    CHECK(info.at("faults").is_array());
    CHECK(!info.at("back_ends").as_array().empty());
    CHECK(info.at("cpu_features").is_array());
    CHECK(info.at("cpu_weight_buffers").is_array());
    CHECK(!info.contains("error"));
}

void check_json_text() {
    // Names in files hold any bytes; the line must stay JSON.
    const std::string odd =
        std::string("a\"\\\n\t\x01") + "\xC3\xA9" + "\xFF" + "\xED\xA0\x80" + "\xF0\x9F\x9A\x80" + "\xC3";
    assay::JsonText json;
    json.open('{');
    json.field("text", odd.c_str());
    json.key("list");
    json.open('[');
    json.value(-3);
    json.value(UINT64_C(18446744073709551615));
    json.value(0.5);
    json.value(true);
    json.open('{');
    json.close('}');
    json.close(']');
    json.close('}');
    const boost::json::value parsed = boost::json::parse(json.text());
    const std::string replacement = "\xEF\xBF\xBD";
    const std::string needed = std::string("a\"\\\n\t\x01") + "\xC3\xA9" + replacement + replacement + replacement +
                               replacement + "\xF0\x9F\x9A\x80" + replacement;
    CHECK_EQUAL(std::string(parsed.at("text").as_string().c_str()), needed);
    CHECK_EQUAL(parsed.at("list").as_array().size(), 5U);
    CHECK_EQUAL(parsed.at("list").at(1).as_uint64(), UINT64_C(18446744073709551615));
}

}  // namespace

int main() {
    check_fields();
    check_json_text();
    return core::finish("core_build_info");
}
