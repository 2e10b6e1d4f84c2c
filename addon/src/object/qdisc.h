#pragma once

#include <linux/rtnetlink.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "object/object_codec.h"

namespace podwire::netlink {

// RTM_NEWQDISC and its kin.
struct Qdisc {
  // `tcm_handle` has the major number in its upper 16 bits, `tcm_parent` TC_H_ROOT of a link's root qdisc.
  tcmsg header{};
  std::optional<std::string> kind;
  // TCA_OPTIONS of a tbf. Options of other kinds are not always attributes, and stay among the unknown ones.
  std::optional<std::vector<OtherAttribute>> tbf_options;
  std::vector<OtherAttribute> unknown_attributes;

  // All but `tbf_options`.
  template <typename Self, typename Field>
  static void Fields(Self& qdisc, Field& field) {
    field(TCA_KIND, qdisc.kind);
  }
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
