#include "socket/request.h"

#include <linux/if.h>
#include <linux/if_link.h>
#include <linux/if_tunnel.h>
#include <linux/rtnetlink.h>

namespace podwire::netlink {

namespace {

struct IndexSetter {
  uint32_t index;
  void operator()(Link& link) const { link.header.ifi_index = static_cast<int32_t>(index); }
  void operator()(Address& address) const { address.header.ifa_index = index; }
  void operator()(Route& route) const { route.output = index; }
  void operator()(Neighbour& neighbour) const { neighbour.header.ndm_ifindex = static_cast<int32_t>(index); }
  void operator()(Qdisc& qdisc) const { qdisc.header.tcm_ifindex = static_cast<int32_t>(index); }
  void operator()(Rule&) const {}
  void operator()(ConntrackEntry&) const {}
};

// A new link has no index yet; the one that it names is the device below its tunnel.
void SetParent(Link& link, uint32_t index) {
  AttributeList parent;
  const bool vxlan = link.info->KindName() == "vxlan";
  parent.Add(vxlan ? uint16_t{IFLA_VXLAN_LINK} : uint16_t{IFLA_IPTUN_LINK}, index);
  for (auto& attribute : parent.Take()) link.info->data.push_back(std::move(attribute));
}

Link SelectLink(uint32_t index, const std::string& name) {
  Link link;
  link.header.ifi_index = static_cast<int32_t>(index);
  if (!name.empty()) link.name = name;
  return link;
}

}  // namespace

void Request::SetLinkIndex(uint32_t index) {
  if (type == RTM_NEWLINK) return SetParent(std::get<Link>(object), index);
  std::visit(IndexSetter{index}, object);
}

Request GetLink(uint32_t index, const std::string& name) {
  Link link = SelectLink(index, name);
  // Statistics are the costliest part of the answer, and are unused.
  link.extension_mask = RTEXT_FILTER_SKIP_STATS;
  Request request;
  request.type = RTM_GETLINK;
  request.object = std::move(link);
  return request;
}

Request DeleteLink(uint32_t index, const std::string& name) {
  Request request;
  request.type = RTM_DELLINK;
  request.object = SelectLink(index, name);
  return request;
}

}  // namespace podwire::netlink
