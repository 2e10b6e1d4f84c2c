import type { Namespace, Step as Request } from '@podwire/netlink';

import type { Neighbour, Route, Step } from '../../plan/step.js';

/** What the addon is asked for to carry out a step. `link-delete` is no request: the addon has a quicker way for it. */
export function toRequest(step: Exclude<Step, { type: 'link-delete' }>, pod: Namespace): Request {
  switch (step.type) {
    case 'link-add':
      return { type: 'link.add', kind: 'veth', ...step.link, peer: { ...step.peer, namespace: pod } };
    case 'link-set':
      return { type: 'link.set', link: { name: step.name }, ...step.change };
    case 'address-add':
      return { type: 'address.add', link: { name: step.device }, address: step.address };
    case 'address-delete':
      return { type: 'address.delete', link: { name: step.device }, address: step.address };
    case 'route-add':
      return { type: 'route.add', ...routeFields(step.route) };
    case 'route-replace':
      return { type: 'route.replace', ...routeFields(step.route) };
    case 'route-delete':
      return { type: 'route.delete', ...routeFields(step.route) };
    case 'neighbour-set':
      return { type: 'neighbour.replace', ...neighbourFields(step.neighbour) };
    case 'neighbour-delete':
      return { type: 'neighbour.delete', ...neighbourFields(step.neighbour) };
    case 'sysctl-write':
      return { type: 'sysctl.write', key: step.key, value: step.value, optional: step.optional };
  }
}

function routeFields({ destination, device, gateway, scope, protocol }: Route) {
  return { destination, output: { name: device }, scope, protocol, ...(gateway === undefined ? {} : { gateway }) };
}

function neighbourFields({ device, address, mac }: Neighbour) {
  return { link: { name: device }, address, mac };
}
