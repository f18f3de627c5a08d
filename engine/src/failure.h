// The one exception type of the engine core: a status of engine.h and a line of text for the caller.
#pragma once

#include <stdexcept>
#include <string>

#include "engine.h"

namespace assay {

class Failure : public std::runtime_error {
public:
    Failure(assay_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
    assay_status status() const { return status_; }

private:
    assay_status status_;
};

}  // namespace assay
