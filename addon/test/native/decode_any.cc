#include "decode_any.h"

#include <arpa/inet.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/netfilter/nfnetlink_log.h>
#include <linux/rtnetlink.h>

#include <cstdio>
#include <cstdlib>

#include "message/writer.h"
#include "netfilter/conntrack.h"
#include "netfilter/packet_log.h"
#include "netfilter/set_element.h"
#include "object/acknowledgement.h"
#include "object/address.h"
#include "object/link.h"
#include "object/neighbour.h"
#include "object/qdisc.h"
#include "object/route.h"
#include "object/rule.h"
#include "object/tunnel.h"

namespace podwire::netlink::test {

namespace {

class Fields {
 public:
  void Add(const char* name, const std::string& value) { text_ += (text_.empty() ? "" : " ") + (name + ("=" + value)); }
  void Add(const char* name, const std::optional<std::string>& value) {
    if (value) Add(name, *value);
  }
  void Add(const char* name, uint32_t value) { Add(name, std::to_string(value)); }
  void Add(const char* name, const std::optional<uint32_t>& value) {
    if (value) Add(name, *value);
  }
  void Add(const char* name, const std::optional<IpAddress>& value) {
    if (value) Add(name, value->Text());
  }
  void Add(const char* name, const std::optional<std::vector<uint8_t>>& mac) {
    if (!mac) return;
    std::string text;
    char part[4];
    for (const uint8_t byte : *mac) {
      std::snprintf(part, sizeof part, "%s%02x", text.empty() ? "" : ":", byte);
      text += part;
    }
    Add(name, text);
  }
  const std::string& Text() const { return text_; }

 private:
  std::string text_;
};

std::string Describe(const Vxlan& vxlan) {
  Fields fields;
  fields.Add("vni", vxlan.vni);
  fields.Add("port", vxlan.port ? std::optional<uint32_t>(*vxlan.port) : std::nullopt);
  fields.Add("parent", vxlan.parent);
  fields.Add("group", vxlan.group);
  fields.Add("local", vxlan.local);
  if (vxlan.learning) fields.Add("learning", *vxlan.learning);
  fields.Add("external", vxlan.external);
  return fields.Text();
}

std::string Describe(const IpTunnel& tunnel) {
  Fields fields;
  fields.Add("parent", tunnel.parent);
  fields.Add("local", tunnel.local);
  fields.Add("remote", tunnel.remote);
  if (tunnel.ttl) fields.Add("ttl", *tunnel.ttl);
  if (tunnel.tos) fields.Add("tos", *tunnel.tos);
  if (tunnel.path_mtu_discovery) fields.Add("pmtudisc", *tunnel.path_mtu_discovery);
  return fields.Text();
}

// The description of a tunnel is the same when it is written and read again.
template <typename Tunnel>
std::string DescribedTwice(const Tunnel& tunnel, const Tunnel& again) {
  if (Describe(tunnel) != Describe(again)) std::abort();
  return "(" + Describe(tunnel) + ")";
}

std::string Describe(const Link& link) {
  Fields fields;
  fields.Add("index", static_cast<uint32_t>(link.header.ifi_index));
  fields.Add("flags", link.header.ifi_flags);
  fields.Add("name", link.name);
  fields.Add("mac", link.mac);
  fields.Add("mtu", link.mtu);
  if (link.alias) fields.Add("alias", WithoutZero(*link.alias));
  fields.Add("group", link.group);
  fields.Add("qdisc", link.root_qdisc);
  fields.Add("txqlen", link.tx_queue_length);
  fields.Add("txq", link.tx_queues);
  fields.Add("rxq", link.rx_queues);
  if (const auto mode = AddressGeneration(link)) fields.Add("addrgenmode", *mode);
  fields.Add("link", link.linked_index);
  fields.Add("netnsid", link.linked_namespace);
  if (link.info) fields.Add("kind", link.info->KindName());
  if (link.info && link.info->KindName() == "vxlan") {
    const Vxlan vxlan = DecodeVxlan(link.info->data);
    fields.Add("vxlan", DescribedTwice(vxlan, DecodeVxlan(EncodeVxlan(vxlan))));
  }
  if (link.info && link.info->KindName() == "ipip") {
    const IpTunnel tunnel = DecodeIpTunnel(link.info->data);
    fields.Add("ipip", DescribedTwice(tunnel, DecodeIpTunnel(EncodeIpTunnel(tunnel))));
  }
  if (link.info && !link.info->peer.empty()) fields.Add("peer", "(" + Describe(link.info->peer.front()) + ")");
  return fields.Text();
}

std::string Describe(const Address& address) {
  Fields fields;
  fields.Add("family", address.header.ifa_family);
  fields.Add("length", address.header.ifa_prefixlen);
  fields.Add("scope", address.header.ifa_scope);
  fields.Add("link", address.header.ifa_index);
  fields.Add("local", address.local);
  fields.Add("address", address.address);
  fields.Add("label", address.label);
  fields.Add("flags", address.flags.value_or(address.header.ifa_flags));
  return fields.Text();
}

std::string Describe(const Route& route) {
  Fields fields;
  fields.Add("family", route.header.rtm_family);
  fields.Add("length", route.header.rtm_dst_len);
  fields.Add("protocol", route.header.rtm_protocol);
  fields.Add("scope", route.header.rtm_scope);
  fields.Add("type", route.header.rtm_type);
  fields.Add("destination", route.destination);
  fields.Add("gateway", route.gateway);
  fields.Add("source", route.preferred_source);
  fields.Add("table", route.table.value_or(route.header.rtm_table));
  fields.Add("priority", route.priority);
  fields.Add("output", route.output);
  return fields.Text();
}

std::string Describe(const Rule& rule) {
  Fields fields;
  fields.Add("family", rule.header.family);
  fields.Add("action", rule.header.action);
  fields.Add("flags", rule.header.flags);
  fields.Add("sourcelength", rule.header.src_len);
  fields.Add("source", rule.source);
  fields.Add("destinationlength", rule.header.dst_len);
  fields.Add("destination", rule.destination);
  fields.Add("priority", rule.priority);
  fields.Add("table", rule.table.value_or(rule.header.table));
  if (rule.protocol) fields.Add("protocol", *rule.protocol);
  return fields.Text();
}

std::string Describe(const Neighbour& neighbour) {
  Fields fields;
  fields.Add("family", neighbour.header.ndm_family);
  fields.Add("link", static_cast<uint32_t>(neighbour.header.ndm_ifindex));
  fields.Add("state", neighbour.header.ndm_state);
  fields.Add("flags", neighbour.header.ndm_flags);
  fields.Add("destination", neighbour.destination);
  fields.Add("mac", neighbour.mac);
  return fields.Text();
}

std::string Describe(const Tbf& tbf) {
  Fields fields;
  fields.Add("rate", std::to_string(tbf.rate_bytes_per_second));
  fields.Add("limit", tbf.limit_bytes);
  fields.Add("burst", tbf.burst_bytes);
  fields.Add("ticks", tbf.bucket_ticks);
  return fields.Text();
}

std::string Describe(const Qdisc& qdisc) {
  Fields fields;
  fields.Add("link", static_cast<uint32_t>(qdisc.header.tcm_ifindex));
  fields.Add("handle", qdisc.header.tcm_handle);
  fields.Add("parent", qdisc.header.tcm_parent);
  fields.Add("kind", qdisc.kind);
  const auto tbf = qdisc.tbf_options ? DecodeTbf(*qdisc.tbf_options) : std::nullopt;
  if (!tbf) return fields.Text();
  // The parameters are the same when they are written and read again.
  const auto again = DecodeTbf(EncodeTbf(*tbf));
  if (!again || Describe(*again) != Describe(*tbf)) std::abort();
  fields.Add("tbf", "(" + Describe(*tbf) + ")");
  return fields.Text();
}

// Only the identity is written, and it has the original tuple.
std::string Describe(const ConntrackEntry& entry) {
  Fields fields;
  fields.Add("family", entry.family);
  fields.Add("source", entry.original.source);
  fields.Add("destination", entry.original.destination);
  if (entry.original.protocol) fields.Add("protocol", *entry.original.protocol);
  if (entry.original.source_port) fields.Add("sport", *entry.original.source_port);
  if (entry.original.destination_port) fields.Add("dport", *entry.original.destination_port);
  fields.Add("identity", static_cast<uint32_t>(entry.identity.size()));
  return fields.Text();
}

std::string Hex(const std::vector<uint8_t>& bytes) {
  std::string text;
  char part[3];
  for (const uint8_t byte : bytes) {
    std::snprintf(part, sizeof part, "%02x", byte);
    text += part;
  }
  return text;
}

std::string Describe(const SetElement& element) {
  Fields fields;
  if (element.key) fields.Add("key", Hex(*element.key));
  if (element.key_end) fields.Add("end", Hex(*element.key_end));
  if (element.value) fields.Add("value", Hex(*element.value));
  if (element.verdict) fields.Add("verdict", std::to_string(element.verdict->code));
  if (element.verdict) fields.Add("chain", element.verdict->chain);
  fields.Add("flags", element.flags);
  fields.Add("unknown", static_cast<uint32_t>(element.unknown_attributes.size()));
  return fields.Text();
}

std::string Describe(const SetElements& list) {
  Fields fields;
  fields.Add("family", list.name.family);
  fields.Add("table", list.name.table);
  fields.Add("set", list.name.set);
  for (const auto& element : list.elements) fields.Add("element", "(" + Describe(element) + ")");
  return fields.Text();
}

std::string Describe(const Generation& generation) {
  Fields fields;
  fields.Add("id", generation.id);
  fields.Add("pid", generation.process_id);
  fields.Add("process", generation.process_name);
  return fields.Text();
}

// Elements are only written by the addon; they are read here to compare them with what nft writes.
std::optional<uint32_t> BigEndian32(const Attribute& attribute) {
  const auto number = attribute.U32();
  return number ? std::optional(ntohl(*number)) : std::nullopt;
}

// The bytes in a nest of NFTA_DATA_VALUE.
std::optional<std::vector<uint8_t>> DecodeValue(ByteView nest) {
  std::optional<std::vector<uint8_t>> value;
  AttributeReader reader(nest);
  while (const auto attribute = reader.Next()) {
    if (attribute->type == NFTA_DATA_VALUE) value = Keep(*attribute).payload;
  }
  if (reader.Malformed()) return std::nullopt;
  return value;
}

std::optional<Verdict> DecodeVerdict(ByteView nest) {
  Verdict verdict;
  bool has_code = false;
  AttributeReader reader(nest);
  while (const auto attribute = reader.Next()) {
    if (attribute->type == NFTA_VERDICT_CODE) {
      const auto code = BigEndian32(*attribute);
      has_code = code.has_value();
      verdict.code = static_cast<int32_t>(code.value_or(0));
    }
    if (attribute->type == NFTA_VERDICT_CHAIN) verdict.chain = attribute->Text();
  }
  if (reader.Malformed() || !has_code) return std::nullopt;
  return verdict;
}

bool DecodeData(const Attribute& attribute, SetElement& element) {
  AttributeReader reader(attribute.payload);
  const auto data = reader.Next();
  if (!data || data->type != NFTA_DATA_VERDICT) return Assign(element.value, DecodeValue(attribute.payload));
  return Assign(element.verdict, DecodeVerdict(data->payload));
}

bool DecodeAttribute(const Attribute& attribute, SetElement& element) {
  switch (attribute.type) {
    case NFTA_SET_ELEM_KEY:
      return Assign(element.key, DecodeValue(attribute.payload));
    case NFTA_SET_ELEM_KEY_END:
      return Assign(element.key_end, DecodeValue(attribute.payload));
    case NFTA_SET_ELEM_DATA:
      return !element.value && !element.verdict && DecodeData(attribute, element);
    case NFTA_SET_ELEM_FLAGS:
      return Assign(element.flags, BigEndian32(attribute));
    default:
      return false;
  }
}

bool DecodeList(ByteView nest, std::vector<SetElement>& elements) {
  AttributeReader reader(nest);
  while (const auto item = reader.Next()) {
    SetElement element;
    AttributeReader attributes(item->payload);
    while (const auto attribute = attributes.Next()) {
      if (!DecodeAttribute(*attribute, element)) element.unknown_attributes.push_back(Keep(*attribute));
    }
    if (attributes.Malformed()) return false;
    elements.push_back(std::move(element));
  }
  return !reader.Malformed();
}

std::optional<SetElements> DecodeSetElements(ByteView payload) {
  const auto header = TakeHeader<nfgenmsg>(payload);
  if (!header) return std::nullopt;
  SetElements list;
  list.name.family = header->nfgen_family;
  std::optional<std::string> table;
  std::optional<std::string> set;
  AttributeReader reader(payload);
  bool has_list = false;
  while (const auto attribute = reader.Next()) {
    bool taken = false;
    if (attribute->type == NFTA_SET_ELEM_LIST_TABLE) taken = Assign(table, attribute->Text());
    if (attribute->type == NFTA_SET_ELEM_LIST_SET) taken = Assign(set, attribute->Text());
    if (attribute->type == NFTA_SET_ELEM_LIST_ELEMENTS) {
      if (has_list || !DecodeList(attribute->payload, list.elements)) return std::nullopt;
      taken = has_list = true;
    }
    if (!taken) list.unknown_attributes.push_back(Keep(*attribute));
  }
  if (reader.Malformed() || !table || !set) return std::nullopt;
  list.name.table = std::move(*table);
  list.name.set = std::move(*set);
  return list;
}

// Has no writer: only the kernel sends it.
std::optional<Decoded> Describe(const std::optional<Acknowledgement>& acknowledgement) {
  if (!acknowledgement) return std::nullopt;
  Fields fields;
  fields.Add("errno", static_cast<uint32_t>(acknowledgement->error));
  fields.Add("text", acknowledgement->text);
  fields.Add("offset", acknowledgement->offset);
  return Decoded{fields.Text(), {}};
}

// Has no writer either.
std::optional<Decoded> Describe(const std::optional<LoggedPacket>& packet) {
  if (!packet) return std::nullopt;
  Fields fields;
  fields.Add("prefix", "(" + packet->prefix + ")");
  fields.Add("input", packet->input_index);
  fields.Add("output", packet->output_index);
  fields.Add("bytes", static_cast<uint32_t>(packet->payload.size()));
  return Decoded{fields.Text(), {}};
}

template <typename Object>
std::optional<Decoded> ThereAndBack(const Message& message, const std::optional<Object>& object) {
  if (!object) return std::nullopt;
  MessageWriter writer;
  writer.Begin(message.type, message.flags, message.sequence);
  Encode(*object, writer);
  writer.End();
  return Decoded{Describe(*object), writer.Bytes()};
}

}  // namespace

std::optional<Decoded> DecodeAny(const Message& message) {
  switch (message.type) {
    case NLMSG_ERROR:
      return Describe(DecodeAcknowledgement(message));
    case NLMSG_DONE:
      return Describe(DecodeListEnd(message));
    case RTM_NEWLINK:
    case RTM_DELLINK:
    case RTM_GETLINK:
    case RTM_SETLINK:
      return ThereAndBack(message, DecodeLink(message.payload));
    case RTM_NEWADDR:
    case RTM_DELADDR:
    case RTM_GETADDR:
      return ThereAndBack(message, DecodeObject<Address>(message.payload));
    case RTM_NEWROUTE:
    case RTM_DELROUTE:
    case RTM_GETROUTE:
      return ThereAndBack(message, DecodeObject<Route>(message.payload));
    case RTM_NEWRULE:
    case RTM_DELRULE:
    case RTM_GETRULE:
      return ThereAndBack(message, DecodeObject<Rule>(message.payload));
    case RTM_NEWNEIGH:
    case RTM_DELNEIGH:
    case RTM_GETNEIGH:
      return ThereAndBack(message, DecodeObject<Neighbour>(message.payload));
    case RTM_NEWQDISC:
    case RTM_DELQDISC:
    case RTM_GETQDISC:
      return ThereAndBack(message, DecodeQdisc(message.payload));
    case NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_PACKET:
      return Describe(DecodeLoggedPacket(message.payload));
    case NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_NEW:
      return ThereAndBack(message, DecodeConntrack(message.payload));
    case NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWSETELEM:
    case NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_DELSETELEM:
      return ThereAndBack(message, DecodeSetElements(message.payload));
    case NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWGEN:
      return ThereAndBack(message, DecodeGeneration(message.payload));
    default:
      return std::nullopt;
  }
}

}  // namespace podwire::netlink::test
