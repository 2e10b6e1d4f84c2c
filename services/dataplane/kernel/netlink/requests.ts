import type { LinkSelector, Namespace, Step as Request } from '@podwire/netlink';

import type { LinkSpec, Neighbour, Route, Step } from '../../wiring/step.js';

/** What a step needs besides itself. */
export interface RequestContext {
  readonly pod: Namespace;
  /** How to select a link of the step's namespace. By index, where it is known, the kernel need not be asked for it. */
  readonly select: (name: string) => LinkSelector;
}

/** What the addon is asked for to carry out a step. `link-delete` is no request: the addon has a quicker way for it. */
export function toRequest(step: Exclude<Step, { type: 'link-delete' }>, { pod, select }: RequestContext): Request {
  switch (step.type) {
    case 'link-add':
      return { type: 'link.add', kind: 'veth', ...newLink(step.link), peer: { namespace: pod, ...newLink(step.peer) } };
    case 'link-set':
      return { type: 'link.set', link: select(step.name), ...step.change };
    case 'address-add':
      return { type: 'address.add', ...addressFields(step, select) };
    case 'address-set':
      return { type: 'address.replace', ...addressFields(step, select) };
    case 'address-delete':
      return { type: 'address.delete', link: select(step.device), address: step.address };
    case 'route-add':
      return { type: 'route.add', ...routeFields(step.route, select) };
    case 'route-replace':
      return { type: 'route.replace', ...routeFields(step.route, select) };
    case 'route-delete':
      return { type: 'route.delete', ...routeFields(step.route, select) };
    case 'rule-add':
      return { type: 'rule.add', ...step.rule };
    case 'rule-delete':
      return { type: 'rule.delete', ...step.rule };
    case 'neighbour-set':
      return { type: 'neighbour.replace', ...neighbourFields(step.neighbour, select) };
    case 'neighbour-delete':
      return { type: 'neighbour.delete', ...neighbourFields(step.neighbour, select) };
    case 'sysctl-write':
      return {
        type: 'sysctl.write',
        key: step.key,
        value: step.value,
        optional: step.optional,
        ...(step.readPrevious && { readPrevious: true }),
      };
  }
}

type Select = RequestContext['select'];

function newLink({ name, mac, mtuBytes, txQueueLength, queueCount }: LinkSpec) {
  return {
    name,
    mac,
    mtuBytes,
    ...(txQueueLength === undefined ? {} : { txQueueLength }),
    ...(queueCount === undefined ? {} : { txQueueCount: queueCount, rxQueueCount: queueCount }),
  };
}

function addressFields({ device, address }: { readonly device: string; readonly address: string }, select: Select) {
  const isIpv6 = address.includes(':');
  return { link: select(device), address, ...(isIpv6 ? { noDad: true } : {}) };
}

function routeFields({ destination, device, gateway, metric, scope, protocol, onlink, table }: Route, select: Select) {
  return {
    destination,
    output: select(device),
    scope,
    protocol,
    ...(gateway === undefined ? {} : { gateway }),
    ...(metric === 0 ? {} : { metric }),
    ...(onlink && { onlink }),
    ...(table === undefined ? {} : { table }),
  };
}

function neighbourFields({ device, address, mac }: Neighbour, select: Select) {
  return { link: select(device), address, mac };
}
