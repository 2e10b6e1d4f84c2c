#include "object/qdisc.h"

#include <linux/pkt_sched.h>

#include <algorithm>
#include <cstring>

namespace podwire::netlink {

namespace {

template <typename Value>
std::optional<Value> Read(const OtherAttribute& option) {
  if (option.payload.size() != sizeof(Value)) return std::nullopt;
  Value value;
  std::memcpy(&value, option.payload.data(), sizeof value);
  return value;
}

std::optional<std::vector<OtherAttribute>> DecodeOptions(ByteView nest) {
  std::vector<OtherAttribute> options;
  AttributeReader reader(nest);
  while (const auto option = reader.Next()) options.push_back(Keep(*option));
  if (reader.Malformed()) return std::nullopt;
  return options;
}

}  // namespace

std::optional<Tbf> DecodeTbf(const std::vector<OtherAttribute>& options) {
  std::optional<tc_tbf_qopt> parameters;
  std::optional<uint64_t> rate;
  std::optional<uint32_t> burst;
  for (const auto& option : options) {
    if (option.raw_type == TCA_TBF_PARMS) parameters = Read<tc_tbf_qopt>(option);
    if (option.raw_type == TCA_TBF_RATE64) rate = Read<uint64_t>(option);
    if (option.raw_type == TCA_TBF_BURST) burst = Read<uint32_t>(option);
  }
  if (!parameters || parameters->peakrate.rate != 0) return std::nullopt;
  Tbf tbf;
  tbf.rate_bytes_per_second = rate.value_or(parameters->rate.rate);
  tbf.limit_bytes = parameters->limit;
  tbf.burst_bytes = burst.value_or(0);
  tbf.bucket_ticks = parameters->buffer;
  return tbf;
}

std::vector<OtherAttribute> EncodeTbf(const Tbf& tbf) {
  tc_tbf_qopt parameters{};
  // With a link layer the kernel needs no table of transmission times, which would limit the rate's precision.
  parameters.rate.linklayer = TC_LINKLAYER_ETHERNET;
  parameters.rate.rate = static_cast<uint32_t>(std::min<uint64_t>(tbf.rate_bytes_per_second, UINT32_MAX));
  parameters.limit = tbf.limit_bytes;
  parameters.buffer = tbf.bucket_ticks;
  AttributeList options;
  options.Add(TCA_TBF_PARMS, ByteView{reinterpret_cast<const uint8_t*>(&parameters), sizeof parameters});
  if (tbf.rate_bytes_per_second > UINT32_MAX) options.Add(TCA_TBF_RATE64, tbf.rate_bytes_per_second);
  if (tbf.burst_bytes > 0) options.Add(TCA_TBF_BURST, tbf.burst_bytes);
  return options.Take();
}

std::optional<Qdisc> DecodeQdisc(ByteView payload) {
  return DecodeObject<Qdisc>(payload, [](const Attribute& attribute, Qdisc& qdisc) {
    return attribute.type == TCA_OPTIONS && qdisc.kind == "tbf" &&
           Assign(qdisc.tbf_options, DecodeOptions(attribute.payload));
  });
}

void Encode(const Qdisc& qdisc, MessageWriter& writer) {
  EncodeFields(qdisc, writer);
  if (qdisc.tbf_options) {
    const size_t nest = writer.OpenNest(TCA_OPTIONS);
    WriteAttributes(writer, *qdisc.tbf_options);
    writer.CloseNest(nest);
  }
  WriteAttributes(writer, qdisc.unknown_attributes);
}

}  // namespace podwire::netlink
