#include "socket/netfilter.h"

#include <arpa/inet.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace podwire::netlink {

namespace {

// For each answer. A transaction waits for transactions of other programs, such as a large one of kube-proxy.
constexpr Socket::Timeout kTimeout{20'000};

constexpr uint16_t TypeOf(uint16_t message) { return static_cast<uint16_t>(NFNL_SUBSYS_NFTABLES << 8 | message); }

// A message of a transaction: which elements of which change it has, and where in it each begins.
struct Part {
  size_t change;
  size_t first;
  std::vector<size_t> positions;
};

// Sequence numbers in a transaction.
constexpr uint32_t kBegin = 0;
constexpr uint32_t kEcho = 1;
constexpr uint32_t kFirstPart = 2;

// The messages of one transaction, with sequence numbers of their own.
class Transaction {
 public:
  Transaction(const std::vector<ElementChange>& changes, uint32_t sequence) : sequence_(sequence) {
    Bound(NFNL_MSG_BATCH_BEGIN);
    WriteEcho(changes);
    for (size_t change = 0; change < changes.size(); ++change) {
      size_t first = 0;
      while (first < changes[change].list.elements.size()) {
        Write(changes[change], change, first);
        first += parts_.back().positions.size();
      }
    }
    Bound(NFNL_MSG_BATCH_END);
    result_.outcomes.resize(changes.size());
    answered_.resize(parts_.size(), false);
    missing_ = parts_.size();
  }

  const MessageWriter& Writer() const { return writer_; }
  // Acknowledged messages.
  size_t Count() const { return parts_.size(); }
  // All messages.
  size_t Length() const { return messages_; }

  // True when nothing more will be answered.
  bool Take(const Message& message) {
    const uint32_t number = message.sequence - sequence_;
    if (number == kEcho && message.type == TypeOf(NFT_MSG_NEWGEN)) {
      const auto generation = DecodeGeneration(message.payload);
      if (generation) result_.generation = generation->id;
    }
    if (message.type != NLMSG_ERROR) return false;
    if (number == kBegin || number == kEcho) {
      // An error of the echo is also an error of the first part, whose answer says more.
      refusal_ = Refusal(DecodeAcknowledgement(message));
      return number == kBegin && refusal_.has_value();
    }
    const uint32_t part = number - kFirstPart;
    if (part >= parts_.size() || answered_[part]) return false;
    TakePart(parts_[part], DecodeAcknowledgement(message));
    answered_[part] = true;
    return --missing_ == 0;
  }

  Result<ChangeResult> Finish() {
    const auto has_failed = [](const ElementOutcome& outcome) { return outcome.error.has_value(); };
    const bool failed = std::any_of(result_.outcomes.begin(), result_.outcomes.end(), has_failed);
    if (refusal_ && !failed) return *refusal_;
    if (failed) {
      for (auto& outcome : result_.outcomes) {
        if (!outcome.error) outcome.error = KernelError{ECANCELED, "another change of the transaction failed"};
      }
      result_.generation.reset();
    }
    return std::move(result_);
  }

 private:
  uint32_t NextSequence() { return sequence_ + messages_++; }

  void Bound(uint16_t type) {
    writer_.Begin(type, NLM_F_REQUEST, NextSequence());
    nfgenmsg header{};
    header.nfgen_family = AF_UNSPEC;
    header.version = NFNETLINK_V0;
    header.res_id = htons(NFNL_SUBSYS_NFTABLES);
    writer_.Header(header);
    writer_.End();
  }

  // The kernel answers with the new generation to the message behind the begin, where that wants an echo. It would also
  // echo the elements, so the message has none.
  void WriteEcho(const std::vector<ElementChange>& changes) {
    writer_.Begin(TypeOf(NFT_MSG_NEWSETELEM), NLM_F_REQUEST | NLM_F_CREATE | NLM_F_ECHO, NextSequence());
    const auto has_elements = [](const ElementChange& change) { return !change.list.elements.empty(); };
    const auto first = std::find_if(changes.begin(), changes.end(), has_elements);
    Encode(SetElements{first == changes.end() ? SetName{} : first->list.name, {}, {}}, writer_);
    writer_.End();
  }

  void Write(const ElementChange& change, size_t number, size_t first) {
    const size_t begin = writer_.Bytes().size();
    const uint16_t flags = NLM_F_REQUEST | NLM_F_ACK;
    writer_.Begin(TypeOf(change.deletes ? NFT_MSG_DELSETELEM : NFT_MSG_NEWSETELEM),
                  static_cast<uint16_t>(change.deletes ? flags : flags | NLM_F_CREATE), NextSequence());
    Part part{number, first, {}};
    EncodeElements(change.list, first, writer_, part.positions);
    writer_.End();
    for (auto& position : part.positions) position -= begin;
    parts_.push_back(std::move(part));
  }

  void TakePart(const Part& part, const std::optional<Acknowledgement>& acknowledgement) {
    auto& outcome = result_.outcomes[part.change];
    if (outcome.error) return;
    outcome.error = Refusal(acknowledgement);
    if (!outcome.error || !acknowledgement || !acknowledgement->offset) return;
    const auto& positions = part.positions;
    const auto behind = std::upper_bound(positions.begin(), positions.end(), size_t{*acknowledgement->offset});
    // An attribute before the list: the table or the set.
    if (behind == positions.begin()) return;
    outcome.element = part.first + static_cast<size_t>(behind - positions.begin()) - 1;
  }

  MessageWriter writer_;
  uint32_t sequence_;
  uint32_t messages_ = 0;
  std::vector<Part> parts_;
  std::vector<bool> answered_;
  size_t missing_ = 0;
  ChangeResult result_;
  std::optional<KernelError> refusal_;
};

}  // namespace

std::optional<KernelError> Netfilter::Connect() {
  if (socket_) return std::nullopt;
  std::optional<Result<Socket>> opened;
  if (auto failure = netns_->RunInside([&] { opened = Socket::Open(NETLINK_NETFILTER); })) return failure;
  if (!*opened) return opened->Error();
  socket_ = std::move(**opened);
  return std::nullopt;
}

Result<ChangeResult> Netfilter::ChangeElements(const std::vector<ElementChange>& changes) {
  if (const auto failure = Connect()) return *failure;
  Transaction transaction(changes, socket_->TakeSequences(0));
  socket_->TakeSequences(transaction.Length());
  if (transaction.Count() == 0) return transaction.Finish();
  if (transaction.Count() > socket_->TogetherMax()) {
    return KernelError{E2BIG, "the transaction has " + std::to_string(transaction.Count()) + " messages, at most " +
                                  std::to_string(socket_->TogetherMax()) + " fit"};
  }
  const auto take = [&](const Message& message) { return transaction.Take(message); };
  if (const auto failure = socket_->Converse(transaction.Writer(), take, kTimeout)) return *failure;
  return transaction.Finish();
}

Result<uint32_t> Netfilter::ReadGeneration() {
  if (const auto failure = Connect()) return *failure;
  const uint32_t sequence = socket_->TakeSequences(1);
  MessageWriter writer;
  writer.Begin(TypeOf(NFT_MSG_GETGEN), NLM_F_REQUEST, sequence);
  nfgenmsg header{};
  header.version = NFNETLINK_V0;
  writer.Header(header);
  writer.End();
  std::optional<Generation> generation;
  std::optional<KernelError> refusal;
  const auto take = [&](const Message& message) {
    if (message.sequence != sequence) return false;
    if (message.type == NLMSG_ERROR) refusal = Refusal(DecodeAcknowledgement(message));
    if (message.type == TypeOf(NFT_MSG_NEWGEN)) generation = DecodeGeneration(message.payload);
    return true;
  };
  if (const auto failure = socket_->Converse(writer, take, kTimeout)) return *failure;
  if (refusal) return *refusal;
  if (!generation) return KernelError{EBADMSG, "malformed generation"};
  return generation->id;
}

}  // namespace podwire::netlink
