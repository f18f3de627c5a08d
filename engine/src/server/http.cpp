#include "http.h"

#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "connection.h"
#include "log.h"

namespace assay::server::http {

struct Server::Impl {
    Shared shared;
    tcp::acceptor acceptor{shared.io};
    asio::signal_set signals{shared.io};
    asio::steady_timer retry{shared.io};
    asio::steady_timer grace{shared.io};
    asio::steady_timer deadline{shared.io};
    std::thread thread;

    void accept() {
        acceptor.async_accept([this](error_code error, tcp::socket socket) {
            if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
            if (error) {
                // Out of descriptors or the like: wait, or this would spin.
                log_line("warning", "accept_failed", {{"message", error.message()}});
                retry.expires_after(std::chrono::milliseconds(100));
                retry.async_wait([this](error_code aborted) {
                    if (!aborted) accept();
                });
                return;
            }
            if (shared.connections.size() < shared.limits.n_connections) {
                std::make_shared<Connection>(shared, std::move(socket))->start();
            } else {
                log_line("warning", "connection_refused", {{"connections", static_cast<int64_t>(shared.connections.size())}});
            }
            accept();
        });
    }

    void poll_close(Clock::time_point until) {
        if (shared.connections.empty() || Clock::now() >= until) return shared.io.stop();
        grace.expires_after(std::chrono::milliseconds(10));
        grace.async_wait([this, until](error_code error) {
            if (!error) poll_close(until);
        });
    }
};

Server::Server(const Limits& limits, Check check, Handler handler) : impl_(std::make_unique<Impl>()) {
    impl_->shared.limits = limits;
    impl_->shared.check = std::move(check);
    impl_->shared.handler = std::move(handler);
}

Server::~Server() { close(std::chrono::milliseconds(0)); }

uint16_t Server::listen(const std::string& host, uint16_t port) {
    error_code error;
    tcp::resolver resolver(impl_->shared.io);
    const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
    if (error) throw std::runtime_error("the host '" + host + "' has no address: " + error.message() + " (--host)");
    const tcp::endpoint endpoint = found.begin()->endpoint();
    tcp::acceptor& acceptor = impl_->acceptor;
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
        throw std::runtime_error("cannot listen on " + host + ":" + std::to_string(port) + ": " + error.message() +
                                 " (--host, --port; --port 0 picks a free one)");
    }
    impl_->accept();
    return acceptor.local_endpoint().port();
}

void Server::start() {
    impl_->thread = std::thread([this] { impl_->shared.io.run(); });
}

void Server::on_signal(std::function<void()> stop, std::chrono::milliseconds grace, std::function<void()> too_late) {
    impl_->signals.add(SIGINT);
    impl_->signals.add(SIGTERM);
    impl_->signals.async_wait([this, stop = std::move(stop), grace, too_late = std::move(too_late)](error_code error, int) {
        if (error) return;
        impl_->deadline.expires_after(grace);
        impl_->deadline.async_wait([too_late](error_code aborted) {
            if (!aborted) too_late();
        });
        stop();
    });
}

void Server::close(std::chrono::milliseconds grace) {
    if (!impl_->thread.joinable()) return;
    asio::post(impl_->shared.io, [this, grace] {
        error_code ignored;
        impl_->acceptor.close(ignored);
        impl_->signals.cancel(ignored);
        impl_->shared.is_closing = true;
        const std::vector<Connection*> all(impl_->shared.connections.begin(), impl_->shared.connections.end());
        for (Connection* connection : all) connection->shared_from_this()->close_when_done();
        impl_->poll_close(Clock::now() + grace);
    });
    impl_->thread.join();
    impl_->shared.handlers.stop();
    impl_->shared.handlers.join();
}

}  // namespace assay::server::http
