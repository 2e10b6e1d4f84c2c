// The layers below the binding against the real kernel, in network namespaces of their own: lists that change while they are
// read or are too long, lost notifications, deleted links, forgotten flows, announced addresses. Run under AddressSanitizer by the tests,
// and under valgrind by leak.mjs; everything that it opens and starts is gone at its end.
//
// usage: sockets   as root; prints one line per check that failed; exit code 1 when there is any
#include <linux/netfilter/nfnetlink.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "checks.h"
#include "object/link.h"
#include "objects.h"
#include "socket/announcement.h"
#include "socket/conntrack.h"
#include "socket/deleter.h"
#include "socket/sequence.h"
#include "socket/subscription.h"

namespace {

using namespace podwire::netlink;
using namespace podwire::netlink::test;

constexpr Socket::Timeout kTimeout{60'000};
constexpr uint32_t kLoopback = 1;
/** Of src/socket/socket.cc. */
constexpr int kAttemptsMax = 5;

int number(const std::optional<KernelError>& error) { return error ? error->number : 0; }

/** All must succeed. */
void exchange(Namespace& within, std::vector<Request> requests, const std::string& what) {
  const auto replies = within.exchange(std::move(requests), kTimeout);
  for (const auto& reply : replies) check(!reply.error, what + ": " + (reply.error ? reply.error->text : ""));
}

uint32_t index_of(Namespace& within, const std::string& name) {
  auto index = within.look_up(name, kTimeout);
  check(static_cast<bool>(index), "look-up of " + name);
  return index ? *index : 0;
}

DumpRequest list_of_links() {
  Link link;
  link.extension_mask = RTEXT_FILTER_SKIP_STATS;
  return {RTM_GETLINK, link};
}

DumpRequest list_of_addresses() {
  Address address;
  address.family = AF_INET;
  return {RTM_GETADDR, address};
}

/** Reads one list and counts how often it was begun, and how many messages the last attempt had. */
struct Listing {
  std::optional<KernelError> failure;
  int attempts = 0;
  size_t messages = 0;
  std::multiset<std::string> names;
};

/** `disturb` is called for each message with its attempt, from 1 on, and its position in that, from 0 on. */
Listing list(Namespace& within, const DumpRequest& request, const std::function<void(int, size_t)>& disturb) {
  Listing listing;
  DumpSink sink;
  sink.restart = [&] {
    ++listing.attempts;
    listing.messages = 0;
    listing.names.clear();
  };
  sink.take = [&](const Message& message) {
    disturb(listing.attempts, listing.messages++);
    if (message.type == RTM_NEWLINK) listing.names.insert(decode_link(message.payload)->name.value_or(""));
  };
  listing.failure = within.dump(request, sink);
  return listing;
}

Listing list(Namespace& within, const DumpRequest& request) {
  return list(within, request, [](int, size_t) {});
}

void fill_with_links(const std::shared_ptr<Namespace>& within, int pairs) {
  std::vector<Request> requests;
  for (int count = 0; count < pairs; ++count) {
    const auto number = std::to_string(count);
    requests.push_back(add_veth("near" + number, "far" + number, within->netns()));
  }
  exchange(*within, std::move(requests), "veth pairs");
}

/** A list beyond its limit leaves the namespace usable, the next list included, and returns no more than was allowed. */
void bounded_lists() {
  const auto within = make_namespace();
  fill_with_links(within, 60);
  auto counted = list_of_links();
  counted.max_count = 120;
  const auto longer = list(*within, counted);
  check(longer.failure && longer.failure->number == E2BIG, "a list beyond its bound is not refused");
  check(longer.messages == 120, "more is handed over than the bound allows");
  counted.max_count = 121;
  const auto whole = list(*within, counted);
  check(!whole.failure && whole.messages == 121, "the list after one that was given up");
  auto timed = list_of_links();
  timed.timeout = std::chrono::milliseconds(40);
  const auto late = list(*within, timed, [](int, size_t message) {
    if (message == 0) std::this_thread::sleep_for(std::chrono::milliseconds(60));
  });
  check(late.failure && late.failure->number == ETIMEDOUT, "a list beyond its time is not refused");
  check(!list(*within, list_of_links()).failure, "the list after one that was late");
}

/** A list of several datagrams, and a second socket that changes the listed objects. */
struct Disturbed {
  std::shared_ptr<Namespace> listed = make_namespace();
  std::function<Request(int)> change;
  int changes = 0;

  /** Changes once in each of the first `attempts`, at its first message: more datagrams are still to be made. */
  Listing list_disturbed(const DumpRequest& request, int attempts) {
    auto socket = open_second();
    return list(*listed, request, [&](int attempt, size_t position) {
      if (attempt > attempts || position > 0) return;
      check(!socket.exchange(change(changes++), kTimeout).error, "a change under a list");
    });
  }

  Socket open_second() {
    std::optional<Result<Socket>> socket;
    check(!listed->netns()->run_inside([&] { socket = Socket::open(); }), "a thread inside");
    return std::move(**socket);
  }
};

void check_interrupted(Disturbed& disturbed, const DumpRequest& request, const std::string& what) {
  const size_t before = list(*disturbed.listed, request).messages;

  auto calm = list(*disturbed.listed, request);
  check(!calm.failure && calm.attempts == 1, what + ": nothing changed, and it was read more than once");

  auto twice = disturbed.list_disturbed(request, 2);
  check(!twice.failure, what + ": not read in the end");
  check(twice.attempts == 3, what + ": read " + std::to_string(twice.attempts) + " times, not 3");
  check(twice.messages == before + 2, what + ": lacks what came while it was read");

  auto always = disturbed.list_disturbed(request, kAttemptsMax + 1);
  check(number(always.failure) == EINTR, what + ": EINTR expected, got " + std::to_string(number(always.failure)));
  check(always.attempts == kAttemptsMax, what + ": tried " + std::to_string(always.attempts) + " times");

  // The socket is still usable.
  auto after = list(*disturbed.listed, request);
  check(!after.failure && after.attempts == 1 && after.messages == before + 2 + kAttemptsMax, what + ": not complete again");
}

void interrupted_lists() {
  Disturbed links;
  fill_with_links(links.listed, 150);
  links.change = [](int count) { return add_vxlan("vx" + std::to_string(count), static_cast<uint32_t>(count) + 1); };
  check_interrupted(links, list_of_links(), "links");
  const auto names = list(*links.listed, list_of_links()).names;
  check(std::set<std::string>(names.begin(), names.end()).size() == names.size(), "links: one is listed twice");

  Disturbed addresses;
  std::vector<Request> requests;
  for (int count = 0; count < 2000; ++count) {
    requests.push_back(add_address(kLoopback, "10.0." + std::to_string(count / 250) + "." + std::to_string(count % 250), 32));
  }
  exchange(*addresses.listed, std::move(requests), "addresses");
  addresses.change = [](int count) { return add_address(kLoopback, "10.1.0." + std::to_string(count), 32); };
  check_interrupted(addresses, list_of_addresses(), "addresses");
}

Subscription subscribe(const Netns& netns, SubscriptionOptions options) {
  std::optional<Result<Subscription>> subscription;
  check(!netns.run_inside([&] { subscription = Subscription::open(options); }), "a thread inside");
  return std::move(**subscription);
}

/** One call of the owner's poll. */
struct Heard {
  size_t routes = 0;
  bool overrun = false;
};

Heard read(Subscription& subscription) {
  Heard heard;
  auto overrun = subscription.read([&](const Message& message) { heard.routes += message.type == RTM_NEWROUTE ? 1 : 0; });
  check(static_cast<bool>(overrun), "reading notifications");
  heard.overrun = overrun && *overrun;
  return heard;
}

bool is_drained(const Subscription& subscription) {
  pollfd waiting{subscription.fd(), POLLIN, 0};
  return poll(&waiting, 1, 0) == 0;
}

std::vector<Request> routes(int first, int count) {
  std::vector<Request> requests;
  for (int position = first; position < first + count; ++position) {
    requests.push_back(add_route("10." + std::to_string(position >> 8) + "." + std::to_string(position & 255) + ".0", 24));
  }
  return requests;
}

/** ENOBUFS, twice: reported once each time, and not before the queue is empty. */
void lost_notifications() {
  const auto within = make_namespace();
  auto subscription = subscribe(*within->netns(), {{RTNLGRP_IPV4_ROUTE}, std::nullopt});
  const int bytes = 96 * 1024;
  check(setsockopt(subscription.fd(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) == 0, "a small buffer");
  for (int round = 0; round < 2; ++round) {
    exchange(*within, routes(2000 * round, 1900), "routes");
    size_t before = 0;
    int overruns = 0;
    int reads = 0;
    while (overruns == 0 && reads < 1000) {
      const auto heard = read(subscription);
      ++reads;
      before += heard.routes;
      overruns += heard.overrun ? 1 : 0;
      check(!heard.overrun || is_drained(subscription), "an overrun is reported before the queue is empty");
    }
    check(overruns == 1, "an overrun is reported");
    check(reads > 1, "the queue has more than one reading holds");
    check(before > 0 && before < 1900, "some notifications are heard and some lost");
    const auto none = read(subscription);
    check(none.routes == 0 && !none.overrun, "an overrun is reported once");
    exchange(*within, routes(2000 * round + 1900, 1), "a route");
    const auto after = read(subscription);
    check(after.routes == 1 && !after.overrun, "what comes after an overrun is heard");
  }
}

/** As many results as requests, by id. */
std::map<uint64_t, int> collect(Deleter& deleter, size_t count) {
  std::map<uint64_t, int> results;
  while (results.size() < count) {
    pollfd waiting{deleter.event_fd(), POLLIN, 0};
    if (poll(&waiting, 1, 60'000) <= 0) break;
    for (const auto& result : deleter.take_results()) results[result.id] = number(result.error);
  }
  return results;
}

void deletions() {
  const auto within = make_namespace();
  fill_with_links(within, 60);
  exchange(*within, {add_vxlan("vx", 1)}, "vxlan");
  const auto deleter = std::move(*Deleter::open(within->netns()));
  for (uint64_t id = 0; id < 60; ++id) deleter->submit({{id, 0, "near" + std::to_string(id)}});
  deleter->submit({{60, 0, "vx"}, {61, 0, "none"}});
  const auto results = collect(*deleter, 62);
  check(results.size() == 62, "a result for each deletion");
  for (const auto& [id, error] : results) check(error == (id == 61 ? ENODEV : 0), "deletion " + std::to_string(id));
  check(list(*within, list_of_links()).messages == 1, "only lo is left");
}

/** Only running work keeps the namespace open; submitted work is completed. */
void vanishing() {
  const auto host = make_namespace();
  auto pod = make_namespace();
  exchange(*host, {add_veth("kept", "eth0", pod->netns()), add_veth("deleted", "eth1", pod->netns())}, "veth pairs");
  auto deleter = std::move(*Deleter::open(pod->netns()));
  deleter->submit({{1, 0, "eth1"}});
  deleter.reset();
  auto subscription = subscribe(*pod->netns(), {{RTNLGRP_IPV4_ROUTE}, std::nullopt});
  std::atomic<int> made{0};
  std::thread user([pod, &made] {
    for (const auto& reply : pod->exchange(routes(0, 2000), kTimeout)) made += reply.error ? 0 : 1;
  });
  pod.reset();
  user.join();
  check(made == 2000, "routes of a namespace that goes");
  check(read(subscription).routes > 0, "are heard by who subscribed");
  subscription = subscribe(*host->netns(), {{RTNLGRP_LINK}, RTM_DELLINK});
  // The kernel deletes the far ends once the namespace has no user.
  std::set<std::string> gone;
  while (list(*host, list_of_links()).messages > 1) {
    pollfd waiting{subscription.fd(), POLLIN, 0};
    if (poll(&waiting, 1, 60'000) <= 0) break;
    (void)subscription.read([](const Message&) {});
  }
  check(list(*host, list_of_links()).messages == 1, "the namespace goes with its last user");
}

void refusals() {
  const auto within = make_namespace();
  exchange(*within, {add_route("10.0.0.0", 8)}, "route");
  const auto replies = within->exchange({add_route("10.0.0.0", 8), add_route("10.0.0.1", 8), set_up(7777)}, kTimeout);
  check(number(replies[0].error) == EEXIST, "EEXIST");
  check(number(replies[1].error) == EINVAL && !replies[1].error->text.empty(), "EINVAL, and the kernel's words");
  check(number(replies[2].error) == ENODEV, "ENODEV");
  check(!static_cast<bool>(within->look_up("none", kTimeout)), "a name that is not there");
  check(!static_cast<bool>(Namespace::open("/dev/null")), "no namespace");
  check(!static_cast<bool>(Namespace::open("/none")), "no file");
}

void everything_listed() {
  const auto within = make_namespace();
  exchange(*within, {set_up(kLoopback), add_vxlan("vx", 1)}, "links");
  const uint32_t vxlan = index_of(*within, "vx");
  exchange(*within,
           {set_up(vxlan), add_address(vxlan, "192.0.2.1", 24), add_address(vxlan, "fd00::1", 64),
            add_neighbour(vxlan, "192.0.2.7"), add_neighbour(vxlan, "fd00::7"), append_fdb(vxlan, "198.51.100.7"),
            add_route("10.0.0.0", 8)},
           "objects");
  Neighbour entry;
  entry.family = AF_BRIDGE;
  entry.filter_index = vxlan;
  check(list(*within, list_of_links()).messages == 2, "links");
  check(list(*within, {RTM_GETADDR, Address{}}).messages >= 4, "addresses");
  check(list(*within, {RTM_GETROUTE, Route{}}).messages >= 4, "routes");
  check(list(*within, {RTM_GETRULE, Rule{}}).messages >= 5, "rules");
  check(list(*within, {RTM_GETNEIGH, Neighbour{}}).messages >= 2, "neighbours");
  check(list(*within, {RTM_GETNEIGH, entry}).messages >= 1, "forwarding entries");
  Route elsewhere;
  elsewhere.family = AF_INET;
  elsewhere.table = 1234;
  check(number(list(*within, {RTM_GETROUTE, elsewhere}).failure) == ENOENT, "a table that is not there");
}

void sequences() {
  const auto host = make_namespace();
  const auto pod = make_namespace();
  std::vector<Step> steps;
  steps.push_back({host, add_veth("podw0", "eth0", pod->netns()), false});
  auto up = set_up(0);
  up.type = RTM_SETLINK;
  up.lookup = "eth0";
  steps.push_back({pod, up, false});
  steps.push_back({pod, SysctlWrite{"net/ipv4/conf/eth0/forwarding", "1"}, false});
  steps.push_back({pod, SysctlWrite{"net/ipv4/conf/none/forwarding", "1"}, true});
  steps.push_back({host, set_up(7777), false});
  steps.push_back({host, add_route("10.0.0.0", 8), false});
  const auto replies = run_sequence(steps, kTimeout);
  const int expected[] = {0, 0, 0, ENOENT, ENODEV, ECANCELED};
  for (size_t position = 0; position < replies.size(); ++position) {
    check(number(replies[position].error) == expected[position], "step " + std::to_string(position));
  }
  auto readings = pod->read_sysctls({"net/ipv4/conf/eth0/forwarding", "net/none"});
  check(readings[0] && *readings[0] == "1", "a sysctl is read");
  check(!readings[1] && readings[1].error().number == ENOENT, "none that is not there");
}

void flows() {
  const auto within = make_namespace();
  exchange(*within, {set_up(kLoopback)}, "lo");
  const char* command =
      "nft 'table inet seen { chain input { type filter hook input priority 0; ct state new counter accept; }; }' && "
      "ping -q -c 1 127.0.0.1 >/dev/null && ping -q -c 1 ::1 >/dev/null";
  int status = -1;
  check(!within->netns()->run_inside([&] { status = std::system(command); }), "a thread inside");
  check(status == 0, "flows");
  for (const auto* address : {"127.0.0.1", "::1"}) {
    auto first = delete_conntrack(*within->netns(), *IpAddress::parse(address));
    check(first && *first >= 1, std::string("flows of ") + address);
    auto second = delete_conntrack(*within->netns(), *IpAddress::parse(address));
    check(second && *second == 0, std::string("no flows of ") + address);
  }
}

void announcements() {
  const auto within = make_namespace();
  exchange(*within, {set_up(kLoopback)}, "lo");
  const char* command =
      "ip link add node type veth peer name far && ip address add 192.0.2.1/24 dev node && ip link set far up && "
      "ip address add 2001:db8::1/64 dev node nodad && ip link set node up";
  int status = -1;
  check(!within->netns()->run_inside([&] { status = std::system(command); }), "a thread inside");
  check(status == 0, "a link with neighbours");
  const uint32_t node = index_of(*within, "node");
  const auto announce = [&](uint32_t index, const char* address) {
    return number(announce_address(*within->netns(), {index, *IpAddress::parse(address), true}));
  };
  check(announce(node, "192.0.2.1") == 0, "IPv4 announced");
  check(announce(node, "2001:db8::1") == 0, "IPv6 announced");
  check(announce(node, "2001:db8::2") == EADDRNOTAVAIL, "an address that the link has not");
  check(announce(kLoopback, "192.0.2.1") == EOPNOTSUPP, "no Ethernet");
  check(announce(node + 100, "192.0.2.1") == ENODEV, "no link");
}

size_t entries(const char* folder) {
  const auto begin = std::filesystem::directory_iterator(folder);
  return static_cast<size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

}  // namespace

int main() {
  const size_t files = entries("/proc/self/fd");
  refusals();
  everything_listed();
  sequences();
  interrupted_lists();
  bounded_lists();
  lost_notifications();
  deletions();
  vanishing();
  flows();
  announcements();
  // Threads that delete end by themselves, and own what they need until then.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (entries("/proc/self/task") > 1 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  check(entries("/proc/self/task") == 1, "a thread is left");
  check(entries("/proc/self/fd") == files, "a file is left open");
  std::printf("sockets: %d checks, %d failed\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
