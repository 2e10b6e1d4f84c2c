// The layers below the binding against the real kernel, in network namespaces of their own: lists that change while
// they are read or are too long, lost notifications, deleted links, forgotten flows, announced addresses. Run under
// AddressSanitizer by the tests, and under valgrind by leak.mjs; everything that it opens and starts is gone at its
// end.
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
#include "netfilter/set_field.h"
#include "object/link.h"
#include "objects.h"
#include "socket/announcement.h"
#include "socket/deleter.h"
#include "socket/netfilter.h"
#include "socket/sequence.h"
#include "socket/subscription.h"

namespace {

using namespace podwire::netlink;
using namespace podwire::netlink::test;

constexpr Socket::Timeout kTimeout{60'000};
constexpr uint32_t kLoopback = 1;
// Limit in src/socket/socket.cc.
constexpr int kAttemptsMax = 5;

int Number(const std::optional<KernelError>& error) { return error ? error->number : 0; }

// All must succeed.
void Exchange(Namespace& within, std::vector<Request> requests, const std::string& what) {
  const auto replies = within.Exchange(std::move(requests), kTimeout);
  for (const auto& reply : replies) Check(!reply.error, what + ": " + (reply.error ? reply.error->text : ""));
}

uint32_t IndexOf(Namespace& within, const std::string& name) {
  auto index = within.LookUp(name, kTimeout);
  Check(static_cast<bool>(index), "look-up of " + name);
  return index ? *index : 0;
}

DumpRequest ListOfLinks() {
  Link link;
  link.extension_mask = RTEXT_FILTER_SKIP_STATS;
  return {RTM_GETLINK, link};
}

DumpRequest ListOfAddresses() {
  Address address;
  address.header.ifa_family = AF_INET;
  return {RTM_GETADDR, address};
}

// Reads one list and counts how often it was begun, and how many messages the last attempt had.
struct Listing {
  std::optional<KernelError> failure;
  int attempts = 0;
  size_t messages = 0;
  std::multiset<std::string> names;
};

// `disturb` is called for each message with its attempt, from 1 on, and its position in that, from 0 on.
Listing List(Namespace& within, const DumpRequest& request, const std::function<void(int, size_t)>& disturb) {
  Listing listing;
  DumpSink sink;
  sink.restart = [&] {
    ++listing.attempts;
    listing.messages = 0;
    listing.names.clear();
  };
  sink.take = [&](const Message& message) {
    disturb(listing.attempts, listing.messages++);
    if (message.type == RTM_NEWLINK) listing.names.insert(DecodeLink(message.payload)->name.value_or(""));
  };
  listing.failure = within.Dump(request, sink);
  return listing;
}

Listing List(Namespace& within, const DumpRequest& request) {
  return List(within, request, [](int, size_t) {});
}

void FillWithLinks(const std::shared_ptr<Namespace>& within, int pairs) {
  std::vector<Request> requests;
  for (int count = 0; count < pairs; ++count) {
    const auto number = std::to_string(count);
    requests.push_back(AddVeth("near" + number, "far" + number, within->GetNetns()));
  }
  Exchange(*within, std::move(requests), "veth pairs");
}

// A list beyond its limit leaves the namespace usable, the next list included, and returns no more than was allowed.
void BoundedLists() {
  const auto within = MakeNamespace();
  FillWithLinks(within, 60);
  auto counted = ListOfLinks();
  counted.max_count = 120;
  const auto longer = List(*within, counted);
  Check(longer.failure && longer.failure->number == E2BIG, "a list beyond its bound is not refused");
  Check(longer.messages == 120, "more is handed over than the bound allows");
  counted.max_count = 121;
  const auto whole = List(*within, counted);
  Check(!whole.failure && whole.messages == 121, "the list after one that was given up");
  auto timed = ListOfLinks();
  timed.timeout = std::chrono::milliseconds(40);
  const auto late = List(*within, timed, [](int, size_t message) {
    if (message == 0) std::this_thread::sleep_for(std::chrono::milliseconds(60));
  });
  Check(late.failure && late.failure->number == ETIMEDOUT, "a list beyond its time is not refused");
  Check(!List(*within, ListOfLinks()).failure, "the list after one that was late");
}

// A list of several datagrams, and a second socket that changes the listed objects.
struct Disturbed {
  std::shared_ptr<Namespace> listed = MakeNamespace();
  std::function<Request(int)> change;
  int changes = 0;

  // Changes once in each of the first `attempts`, at its first message: more datagrams are still to be made.
  Listing ListDisturbed(const DumpRequest& request, int attempts) {
    auto socket = OpenSecond();
    return List(*listed, request, [&](int attempt, size_t position) {
      if (attempt > attempts || position > 0) return;
      Check(!socket.Exchange(change(changes++), kTimeout).error, "a change under a list");
    });
  }

  Socket OpenSecond() {
    std::optional<Result<Socket>> socket;
    Check(!listed->GetNetns()->RunInside([&] { socket = Socket::Open(); }), "a thread inside");
    return std::move(**socket);
  }
};

void CheckInterrupted(Disturbed& disturbed, const DumpRequest& request, const std::string& what) {
  const size_t before = List(*disturbed.listed, request).messages;

  auto calm = List(*disturbed.listed, request);
  Check(!calm.failure && calm.attempts == 1, what + ": nothing changed, and it was read more than once");

  auto twice = disturbed.ListDisturbed(request, 2);
  Check(!twice.failure, what + ": not read in the end");
  Check(twice.attempts == 3, what + ": read " + std::to_string(twice.attempts) + " times, not 3");
  Check(twice.messages == before + 2, what + ": lacks what came while it was read");

  auto always = disturbed.ListDisturbed(request, kAttemptsMax + 1);
  Check(Number(always.failure) == EINTR, what + ": EINTR expected, got " + std::to_string(Number(always.failure)));
  Check(always.attempts == kAttemptsMax, what + ": tried " + std::to_string(always.attempts) + " times");

  // The socket is still usable.
  auto after = List(*disturbed.listed, request);
  Check(!after.failure && after.attempts == 1 && after.messages == before + 2 + kAttemptsMax,
        what + ": not complete again");
}

void InterruptedLists() {
  Disturbed links;
  FillWithLinks(links.listed, 150);
  links.change = [](int count) { return AddVxlan("vx" + std::to_string(count), static_cast<uint32_t>(count) + 1); };
  CheckInterrupted(links, ListOfLinks(), "links");
  const auto names = List(*links.listed, ListOfLinks()).names;
  Check(std::set<std::string>(names.begin(), names.end()).size() == names.size(), "links: one is listed twice");

  Disturbed addresses;
  constexpr int kCount = 2000;
  std::vector<Request> requests;
  requests.reserve(kCount);
  for (int count = 0; count < kCount; ++count) {
    requests.push_back(
        AddAddress(kLoopback, "10.0." + std::to_string(count / 250) + "." + std::to_string(count % 250), 32));
  }
  Exchange(*addresses.listed, std::move(requests), "addresses");
  addresses.change = [](int count) { return AddAddress(kLoopback, "10.1.0." + std::to_string(count), 32); };
  CheckInterrupted(addresses, ListOfAddresses(), "addresses");
}

Subscription Subscribe(const Netns& netns, SubscriptionOptions options) {
  std::optional<Result<Subscription>> subscription;
  Check(!netns.RunInside([&] { subscription = Subscription::Open(options); }), "a thread inside");
  return std::move(**subscription);
}

// One call of the owner's poll.
struct Heard {
  size_t routes = 0;
  bool overrun = false;
};

Heard Read(Subscription& subscription) {
  Heard heard;
  auto overrun =
      subscription.Read([&](const Message& message) { heard.routes += message.type == RTM_NEWROUTE ? 1 : 0; });
  Check(static_cast<bool>(overrun), "reading notifications");
  heard.overrun = overrun && *overrun;
  return heard;
}

bool IsDrained(const Subscription& subscription) {
  pollfd waiting{subscription.Fd(), POLLIN, 0};
  return poll(&waiting, 1, 0) == 0;
}

std::vector<Request> Routes(int first, int count) {
  std::vector<Request> requests;
  for (int position = first; position < first + count; ++position) {
    requests.push_back(
        AddRoute("10." + std::to_string(position >> 8) + "." + std::to_string(position & 255) + ".0", 24));
  }
  return requests;
}

// ENOBUFS, twice: reported once each time, and not before the queue is empty.
void LostNotifications() {
  const auto within = MakeNamespace();
  auto subscription = Subscribe(*within->GetNetns(), {{RTNLGRP_IPV4_ROUTE}, std::nullopt});
  const int bytes = 96 * 1024;
  Check(setsockopt(subscription.Fd(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) == 0, "a small buffer");
  for (int round = 0; round < 2; ++round) {
    Exchange(*within, Routes(2000 * round, 1900), "routes");
    size_t before = 0;
    int overruns = 0;
    int reads = 0;
    while (overruns == 0 && reads < 1000) {
      const auto heard = Read(subscription);
      ++reads;
      before += heard.routes;
      overruns += heard.overrun ? 1 : 0;
      Check(!heard.overrun || IsDrained(subscription), "an overrun is reported before the queue is empty");
    }
    Check(overruns == 1, "an overrun is reported");
    Check(reads > 1, "the queue has more than one reading holds");
    Check(before > 0 && before < 1900, "some notifications are heard and some lost");
    const auto none = Read(subscription);
    Check(none.routes == 0 && !none.overrun, "an overrun is reported once");
    Exchange(*within, Routes(2000 * round + 1900, 1), "a route");
    const auto after = Read(subscription);
    Check(after.routes == 1 && !after.overrun, "what comes after an overrun is heard");
  }
}

// As many results as requests, by id.
std::map<uint64_t, int> Collect(Deleter& deleter, size_t count) {
  std::map<uint64_t, int> results;
  while (results.size() < count) {
    pollfd waiting{deleter.EventFd(), POLLIN, 0};
    if (poll(&waiting, 1, 60'000) <= 0) break;
    for (const auto& result : deleter.TakeResults()) results[result.id] = Number(result.error);
  }
  return results;
}

void Deletions() {
  const auto within = MakeNamespace();
  FillWithLinks(within, 60);
  Exchange(*within, {AddVxlan("vx", 1)}, "vxlan");
  const auto deleter = std::move(*Deleter::Open(within->GetNetns()));
  for (uint64_t id = 0; id < 60; ++id) deleter->Submit({{id, 0, "near" + std::to_string(id)}});
  deleter->Submit({{60, 0, "vx"}, {61, 0, "none"}});
  const auto results = Collect(*deleter, 62);
  Check(results.size() == 62, "a result for each deletion");
  for (const auto& [id, error] : results) Check(error == (id == 61 ? ENODEV : 0), "deletion " + std::to_string(id));
  Check(List(*within, ListOfLinks()).messages == 1, "only lo is left");
}

// Only running work keeps the namespace open; submitted work is completed.
void Vanishing() {
  const auto host = MakeNamespace();
  auto pod = MakeNamespace();
  Exchange(*host, {AddVeth("kept", "eth0", pod->GetNetns()), AddVeth("deleted", "eth1", pod->GetNetns())},
           "veth pairs");
  auto deleter = std::move(*Deleter::Open(pod->GetNetns()));
  deleter->Submit({{1, 0, "eth1"}});
  deleter.reset();
  auto subscription = Subscribe(*pod->GetNetns(), {{RTNLGRP_IPV4_ROUTE}, std::nullopt});
  std::atomic<int> made{0};
  std::thread user([pod, &made] {
    for (const auto& reply : pod->Exchange(Routes(0, 2000), kTimeout)) made += reply.error ? 0 : 1;
  });
  pod.reset();
  user.join();
  Check(made == 2000, "routes of a namespace that goes");
  Check(Read(subscription).routes > 0, "are heard by who subscribed");
  subscription = Subscribe(*host->GetNetns(), {{RTNLGRP_LINK}, RTM_DELLINK});
  // The kernel deletes the far ends once the namespace has no user.
  std::set<std::string> gone;
  while (List(*host, ListOfLinks()).messages > 1) {
    pollfd waiting{subscription.Fd(), POLLIN, 0};
    if (poll(&waiting, 1, 60'000) <= 0) break;
    (void)subscription.Read([](const Message&) {});
  }
  Check(List(*host, ListOfLinks()).messages == 1, "the namespace goes with its last user");
}

void Refusals() {
  const auto within = MakeNamespace();
  Exchange(*within, {AddRoute("10.0.0.0", 8)}, "route");
  const auto replies = within->Exchange({AddRoute("10.0.0.0", 8), AddRoute("10.0.0.1", 8), SetUp(7777)}, kTimeout);
  Check(Number(replies[0].error) == EEXIST, "EEXIST");
  Check(Number(replies[1].error) == EINVAL && !replies[1].error->text.empty(), "EINVAL, and the kernel's words");
  Check(Number(replies[2].error) == ENODEV, "ENODEV");
  Check(!static_cast<bool>(within->LookUp("none", kTimeout)), "a name that is not there");
  Check(!static_cast<bool>(Namespace::Open("/dev/null")), "no namespace");
  Check(!static_cast<bool>(Namespace::Open("/none")), "no file");
}

void EverythingListed() {
  const auto within = MakeNamespace();
  Exchange(*within, {SetUp(kLoopback), AddVxlan("vx", 1)}, "links");
  const uint32_t vxlan = IndexOf(*within, "vx");
  Exchange(*within,
           {SetUp(vxlan), AddAddress(vxlan, "192.0.2.1", 24), AddAddress(vxlan, "fd00::1", 64),
            AddNeighbour(vxlan, "192.0.2.7"), AddNeighbour(vxlan, "fd00::7"), AppendFdb(vxlan, "198.51.100.7"),
            AddRoute("10.0.0.0", 8)},
           "objects");
  Neighbour entry;
  entry.header.ndm_family = AF_BRIDGE;
  entry.filter_index = vxlan;
  Check(List(*within, ListOfLinks()).messages == 2, "links");
  Check(List(*within, {RTM_GETADDR, Address{}}).messages >= 4, "addresses");
  Check(List(*within, {RTM_GETROUTE, Route{}}).messages >= 4, "routes");
  Check(List(*within, {RTM_GETRULE, Rule{}}).messages >= 5, "rules");
  Check(List(*within, {RTM_GETNEIGH, Neighbour{}}).messages >= 2, "neighbours");
  Check(List(*within, {RTM_GETNEIGH, entry}).messages >= 1, "forwarding entries");
  Route elsewhere;
  elsewhere.header.rtm_family = AF_INET;
  elsewhere.table = 1234;
  Check(Number(List(*within, {RTM_GETROUTE, elsewhere}).failure) == ENOENT, "a table that is not there");
}

void Sequences() {
  const auto host = MakeNamespace();
  const auto pod = MakeNamespace();
  std::vector<Step> steps;
  steps.push_back({host, AddVeth("podw0", "eth0", pod->GetNetns()), false});
  auto up = SetUp(0);
  up.type = RTM_SETLINK;
  up.lookup = "eth0";
  steps.push_back({pod, up, false});
  steps.push_back({pod, SysctlWrite{"net/ipv4/conf/eth0/forwarding", "1"}, false});
  steps.push_back({pod, SysctlWrite{"net/ipv4/conf/none/forwarding", "1"}, true});
  steps.push_back({host, SetUp(7777), false});
  steps.push_back({host, AddRoute("10.0.0.0", 8), false});
  const auto replies = RunSequence(steps, kTimeout);
  const int expected[] = {0, 0, 0, ENOENT, ENODEV, ECANCELED};
  for (size_t position = 0; position < replies.size(); ++position) {
    Check(Number(replies[position].error) == expected[position], "step " + std::to_string(position));
  }
  auto readings = pod->ReadSysctls({"net/ipv4/conf/eth0/forwarding", "net/none"});
  Check(readings[0] && *readings[0] == "1", "a sysctl is read");
  Check(!readings[1] && readings[1].Error().number == ENOENT, "none that is not there");
}

void Flows() {
  const auto within = MakeNamespace();
  Exchange(*within, {SetUp(kLoopback)}, "lo");
  const char* command =
      "nft 'table inet seen { chain input { type filter hook input priority 0; ct state new counter accept; }; }' && "
      "ping -q -c 1 127.0.0.1 >/dev/null && ping -q -c 1 ::1 >/dev/null";
  int status = -1;
  Check(!within->GetNetns()->RunInside([&] { status = std::system(command); }), "a thread inside");
  Check(status == 0, "flows");
  Netfilter netfilter(within->GetNetns());
  for (const auto* text : {"127.0.0.1", "::1"}) {
    const auto address = *IpAddress::Parse(text);
    const ConntrackFilter filter{address.family, address};
    auto first = netfilter.DeleteConntrack(filter);
    Check(first && *first > 0, std::string("flows of ") + text);
    auto second = netfilter.DeleteConntrack(filter);
    Check(second && *second == 0, std::string("no flows of ") + text);
  }
}

// Elements `x0` to `xN`, as src/binding makes them.
std::vector<SetElement> Names(int count) {
  std::vector<SetElement> elements;
  for (int at = 0; at < count; ++at) {
    const auto wrong = AppendElement({{FieldType::kIfname}, {}, false}, {{"x" + std::to_string(at)}, {}}, elements);
    Check(!wrong, "an element");
  }
  return elements;
}

void Elements() {
  const auto within = MakeNamespace();
  int status = -1;
  const char* command = "nft 'table inet own { set names { type ifname; }; }'";
  Check(!within->GetNetns()->RunInside([&] { status = std::system(command); }), "a thread inside");
  Check(status == 0, "a table");
  constexpr uint8_t kInet = 1;
  constexpr int kCount = 5000;
  const SetName name{kInet, "own", "names"};
  Netfilter netfilter(within->GetNetns());
  const auto change = [&](bool deletes, std::vector<SetElement> elements) {
    return netfilter.ChangeElements({{deletes, {name, std::move(elements), {}}}});
  };
  auto before = netfilter.ReadGeneration();
  auto added = change(false, Names(kCount));
  Check(added && !added->outcomes[0].error && added->generation == *before + 1, "elements are added");
  auto missing = Names(kCount + 1);
  missing.erase(missing.begin(), missing.end() - 1);
  auto refused = netfilter.ChangeElements({{true, {name, Names(kCount), {}}}, {true, {name, missing, {}}}});
  Check(refused && Number(refused->outcomes[0].error) == ECANCELED, "nothing is changed");
  Check(refused && Number(refused->outcomes[1].error) == ENOENT && refused->outcomes[1].element == 0, "one is named");
  auto all = Names(kCount);
  all.push_back(missing.front());
  auto last = change(true, std::move(all));
  Check(last && Number(last->outcomes[0].error) == ENOENT && last->outcomes[0].element == kCount, "in a later message");
  auto deleted = change(true, Names(kCount));
  Check(deleted && !deleted->outcomes[0].error, "elements are deleted");
  auto again = change(true, Names(1));
  Check(again && Number(again->outcomes[0].error) == ENOENT, "elements are gone");
  auto nothing = change(false, {});
  Check(nothing && !nothing->outcomes[0].error && !nothing->generation, "no elements");
  auto none = netfilter.ChangeElements({{false, {{kInet, "none", "names"}, Names(1), {}}}});
  Check(none && Number(none->outcomes[0].error) == ENOENT, "no table");
}

void Announcements() {
  const auto within = MakeNamespace();
  Exchange(*within, {SetUp(kLoopback)}, "lo");
  const char* command =
      "ip link add node type veth peer name far && ip address add 192.0.2.1/24 dev node && ip link set far up && "
      "ip address add 2001:db8::1/64 dev node nodad && ip link set node up";
  int status = -1;
  Check(!within->GetNetns()->RunInside([&] { status = std::system(command); }), "a thread inside");
  Check(status == 0, "a link with neighbours");
  const uint32_t node = IndexOf(*within, "node");
  const auto announce = [&](uint32_t index, const char* address) {
    return Number(AnnounceAddress(*within->GetNetns(), {index, *IpAddress::Parse(address), true}));
  };
  Check(announce(node, "192.0.2.1") == 0, "IPv4 announced");
  Check(announce(node, "2001:db8::1") == 0, "IPv6 announced");
  Check(announce(node, "2001:db8::2") == EADDRNOTAVAIL, "an address that the link has not");
  Check(announce(kLoopback, "192.0.2.1") == EOPNOTSUPP, "no Ethernet");
  Check(announce(node + 100, "192.0.2.1") == ENODEV, "no link");
}

size_t Entries(const char* folder) {
  const auto begin = std::filesystem::directory_iterator(folder);
  return static_cast<size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

}  // namespace

int main() {
  const size_t files = Entries("/proc/self/fd");
  Refusals();
  EverythingListed();
  Sequences();
  InterruptedLists();
  BoundedLists();
  LostNotifications();
  Deletions();
  Vanishing();
  Flows();
  Elements();
  Announcements();
  // Threads that delete end by themselves, and own what they need until then.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (Entries("/proc/self/task") > 1 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  Check(Entries("/proc/self/task") == 1, "a thread is left");
  Check(Entries("/proc/self/fd") == files, "a file is left open");
  std::printf("sockets: %d checks, %d failed\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
