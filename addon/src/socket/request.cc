#include "socket/request.h"

#include <linux/if.h>
#include <linux/if_link.h>
#include <linux/if_tunnel.h>
#include <linux/rtnetlink.h>

namespace podwire::netlink {

namespace {

struct IndexSetter {
  uint32_t index;
  void operator()(Link& link) const { link.index = static_cast<int32_t>(index); }
  void operator()(Address& address) const { address.link_index = index; }
  void operator()(Route& route) const { route.output = index; }
  void operator()(Neighbour& neighbour) const { neighbour.link_index = static_cast<int32_t>(index); }
  void operator()(Rule&) const {}
  void operator()(ConntrackEntry&) const {}
};

/** A new link has no index yet; the one that it names is the device below its tunnel. */
void set_parent(Link& link, uint32_t index) {
  AttributeList parent;
  const bool vxlan = link.info->kind_name() == "vxlan";
  parent.add(vxlan ? uint16_t{IFLA_VXLAN_LINK} : uint16_t{IFLA_IPTUN_LINK}, index);
  for (auto& attribute : parent.take()) link.info->data.push_back(std::move(attribute));
}

Link select_link(uint32_t index, const std::string& name) {
  Link link;
  link.index = static_cast<int32_t>(index);
  if (!name.empty()) link.name = name;
  return link;
}

}  // namespace

void Request::set_link_index(uint32_t index) {
  if (type == RTM_NEWLINK) return set_parent(std::get<Link>(object), index);
  std::visit(IndexSetter{index}, object);
}

Request get_link(uint32_t index, const std::string& name) {
  Link link = select_link(index, name);
  // Statistics are the costliest part of the answer, and are unused.
  link.extension_mask = RTEXT_FILTER_SKIP_STATS;
  Request request;
  request.type = RTM_GETLINK;
  request.object = std::move(link);
  return request;
}

Request delete_link(uint32_t index, const std::string& name) {
  Request request;
  request.type = RTM_DELLINK;
  request.object = select_link(index, name);
  return request;
}

}  // namespace podwire::netlink
