import type { Links } from '../../pods/kernel.js';
import { checkMtu, Errno, show, type MemoryNamespace } from '../../testing/memory-namespace.js';
import { keyText, type ObservedLink } from '../../wiring/observed.js';
import { withValueBefore, type Side, type Step } from '../../wiring/step.js';

/** Where a step is carried out. */
export interface Where {
  readonly namespace: MemoryNamespace;
  readonly pod: MemoryNamespace;
  /** As some kernels do with that of the creating message. */
  readonly ignoresMac: boolean;
}

/** Carries out a step as the kernel does. @throws Errno what the kernel refuses it with */
export function carryOut(step: Step, where: Where): void {
  const { namespace } = where;
  switch (step.type) {
    case 'link-add':
      addVeth(step, where);
      break;
    case 'link-delete':
      namespace.removeLink(namespace.find(step.name));
      break;
    case 'link-set':
      namespace.setLink(namespace.find(step.name), step.change);
      break;
    case 'address-add':
      namespace.addAddress(step.device, step.address);
      break;
    case 'address-set':
      namespace.setAddress(step.device, step.address);
      break;
    case 'address-delete':
      namespace.deleteAddress(step.device, step.address);
      break;
    case 'route-add':
      namespace.addRoute(step.route);
      break;
    case 'route-replace':
      namespace.replaceRoute(step.route);
      break;
    case 'route-delete':
      namespace.deleteRoute(step.route);
      break;
    case 'rule-add':
      namespace.addRule(step.rule);
      break;
    case 'rule-delete':
      namespace.deleteRule(step.rule);
      break;
    case 'neighbour-set':
      namespace.setNeighbour(step.neighbour);
      break;
    case 'neighbour-delete':
      namespace.deleteNeighbour(step.neighbour);
      break;
    case 'sysctl-write':
      namespace.writeSysctl(keyText(step.key), step.value);
      break;
  }
}

function addVeth({ link, peer }: Extract<Step, { type: 'link-add' }>, { namespace, pod, ignoresMac }: Where): void {
  if (namespace.has(link.name) || pod.has(peer.name)) throw new Errno('EEXIST');
  checkMtu(peer.mtuBytes);
  const mac = ignoresMac ? '02:00:00:00:00:01' : link.mac;
  const host = namespace.addLink({ ...link, mac }, 'veth');
  const end = pod.addLink(peer, 'veth');
  host.peer = { link: end, namespace: pod };
  end.peer = { link: host, namespace };
}

/** The step as it will have been carried out: with the value before, where that is to be read. */
export function withPrevious(step: Step, namespace: MemoryNamespace): Step {
  if (step.type !== 'sysctl-write' || !step.readPrevious) return step;
  return withValueBefore(step, namespace.sysctls.get(keyText(step.key)));
}

/** In each namespace the last link that was made or set there. */
export function readBack(finished: readonly Step[], namespaces: Readonly<Record<Side, MemoryNamespace>>): Links {
  const links: Partial<Record<Side, ObservedLink>> = {};
  for (const step of finished) {
    if (step.type === 'link-set') links[step.side] = show(namespaces[step.side].find(step.name));
    if (step.type === 'link-add') links[step.side] = show(namespaces[step.side].find(step.link.name));
  }
  return links;
}

/** How the addon names the operations. */
export const OPERATION_NAMES: Readonly<Record<Step['type'], string>> = {
  'link-add': 'link.add',
  'link-delete': 'link.delete',
  'link-set': 'link.set',
  'address-add': 'address.add',
  'address-set': 'address.replace',
  'address-delete': 'address.delete',
  'route-add': 'route.add',
  'route-replace': 'route.replace',
  'route-delete': 'route.delete',
  'rule-add': 'rule.add',
  'rule-delete': 'rule.delete',
  'neighbour-set': 'neighbour.replace',
  'neighbour-delete': 'neighbour.delete',
  'sysctl-write': 'sysctl.write',
};
