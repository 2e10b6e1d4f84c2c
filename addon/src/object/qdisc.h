#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "object/attribute.h"

namespace podwire::netlink {

// RTM_NEWQDISC and its kin: `tcmsg` and TCA_* of linux/rtnetlink.h.
struct Qdisc {
  uint8_t family = 0;
  int32_t link_index = 0;
  // Major number in the upper 16 bits.
  uint32_t handle = 0;
  // TC_H_ROOT of a link's root qdisc.
  uint32_t parent = 0;
  uint32_t info = 0;
  std::optional<std::string> kind;
  // TCA_OPTIONS of a tbf. Options of other kinds are not always attributes, and stay among the unknown ones.
  std::optional<std::vector<OtherAttribute>> tbf_options;
  std::vector<OtherAttribute> unknown_attributes;
};

// Options of a token bucket filter: TCA_TBF_* of linux/pkt_sched.h.
struct Tbf {
  uint64_t rate_bytes_per_second = 0;
  // Bytes that may wait for tokens.
  uint32_t limit_bytes = 0;
  // Size of the bucket. Of requests only: the kernel answers with `bucket_ticks`.
  uint32_t burst_bytes = 0;
  // Time in units of 64 ns to fill the bucket, modulo 2^32.
  uint32_t bucket_ticks = 0;
};

// Nothing without readable parameters, and with a peak rate, which `Tbf` does not have.
std::optional<Tbf> DecodeTbf(const std::vector<OtherAttribute>& options);
std::vector<OtherAttribute> EncodeTbf(const Tbf& tbf);

// Nothing when the payload is malformed.
std::optional<Qdisc> DecodeQdisc(ByteView payload);
void Encode(const Qdisc& qdisc, MessageWriter& writer);

}  // namespace podwire::netlink
