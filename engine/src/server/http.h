// HTTP/1.1 on Boost.Beast's parser behind an interface that shows none of it.
//
// One thread carries all connections. Routes run on one handler thread in order of arrival, so that a long
// prompt being tokenized does not hold up the others' answers; an answer may be given from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace assay::server::http {

struct Limits {
    size_t n_connections = 1024;
    size_t header_bytes = 16 << 10;
    size_t body_bytes = 16 << 20;
    // What a client may leave unread beyond the kernel's buffers before its stream is dropped.
    size_t unread_bytes = 4 << 20;
    // What may be sent ahead while a request is in work; more waits in the kernel's buffers.
    size_t pipelined_bytes = 64 << 10;
    std::chrono::seconds header_time{10};  // from the first byte of a request
    std::chrono::seconds body_time{60};
    std::chrono::seconds idle_time{75};    // between two requests
    std::chrono::seconds write_time{30};   // without any progress
};

struct Request {
    std::string method;
    std::string path;   // without the query
    std::string query;
    std::string authorization;
    std::string api_key;  // X-Api-Key
    std::string body;
};

struct Reply {
    int status = 200;
    std::string body;
    std::string content_type = "application/json; charset=utf-8";
    std::string allow;  // methods, for 405
};

// The answer to one request: a whole reply, or a stream of server-sent events. Every method may be called
// from any thread; the calls of one thread keep their order. What comes after the client has gone is dropped.
class Exchange {
public:
    virtual ~Exchange() = default;
    // Runs on the connection thread; the calls made inside take effect at once.
    virtual void post(std::function<void()> work) = 0;
    // Runs on the handler thread.
    virtual void post_to_handler(std::function<void()> work) = 0;
    virtual void reply(Reply reply) = 0;
    // The first call sends the head. `data` holds whole events.
    virtual void events(std::string data) = 0;
    // Ends the stream.
    virtual void finish() = 0;
    // `gone` is called once, on the connection thread, when the client goes away before the answer is
    // complete, or at once if it has gone already.
    virtual void on_gone(std::function<void()> gone) = 0;
};

class Server {
public:
    // Called on the connection thread when the head is complete. A reply answers the request there and then,
    // with its body unread.
    using Check = std::function<std::optional<Reply>(const Request& head)>;
    // Called on the handler thread.
    using Handler = std::function<void(const Request&, std::shared_ptr<Exchange>)>;

    Server(const Limits& limits, Check check, Handler handler);
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    // Throws std::runtime_error. Returns the port, which is chosen by the system for 0.
    uint16_t listen(const std::string& host, uint16_t port);
    void start();
    // SIGINT and SIGTERM call `stop` on the connection thread; `too_late` is called if the process still
    // lives when the time is over.
    void on_signal(std::function<void()> stop, std::chrono::milliseconds grace, std::function<void()> too_late);
    // Accepts no more, lets answers finish for at most `grace`, and ends the threads.
    void close(std::chrono::milliseconds grace);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace assay::server::http
