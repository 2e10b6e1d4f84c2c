#include "netfilter/table_watch.h"

#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>

#include <algorithm>
#include <utility>

namespace podwire::netlink {

namespace {

// NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_SET_ELEM_LIST_TABLE: the same in messages about all kinds of objects.
constexpr uint16_t kTableAttribute = 1;

std::optional<TableName> DecodeTableName(ByteView payload) {
  const auto header = TakeHeader<nfgenmsg>(payload);
  AttributeReader reader(payload);
  while (const auto attribute = header ? reader.Next() : std::nullopt) {
    if (attribute->type != kTableAttribute) continue;
    auto name = attribute->Text();
    if (!name) return std::nullopt;
    return TableName{header->nfgen_family, std::move(*name)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<TableTransaction> TableWatch::Take(const Message& message) {
  if (NFNL_SUBSYS_ID(message.type) != NFNL_SUBSYS_NFTABLES) return std::nullopt;
  const auto kind = static_cast<uint16_t>(NFNL_MSG_TYPE(message.type));
  if (kind == NFT_MSG_NEWGEN) return End(message.payload);
  const auto table = DecodeTableName(message.payload);
  malformed_ = malformed_ || !table;
  for (size_t at = 0; table && at < tables_.size(); ++at) {
    if (tables_[at].family == table->family && tables_[at].name == table->name) kinds_[at].insert(kind);
  }
  return std::nullopt;
}

std::optional<TableTransaction> TableWatch::End(ByteView payload) {
  auto generation = DecodeGeneration(payload);
  malformed_ = malformed_ || !generation;
  if (!generation || std::all_of(kinds_.begin(), kinds_.end(), [](const auto& kinds) { return kinds.empty(); })) {
    return std::nullopt;
  }
  auto kinds = std::exchange(kinds_, std::vector<std::set<uint16_t>>(tables_.size()));
  return TableTransaction{std::move(*generation), std::move(kinds)};
}

}  // namespace podwire::netlink
