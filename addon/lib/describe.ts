import type { LinkSelector, Step, SysctlKey } from './requests.js';

/** The two halves of an error's first line. */
export interface Described {
  readonly operation: string;
  readonly object: string;
}

export function describeSelector(link: LinkSelector): string {
  return 'name' in link ? link.name : `link ${link.index}`;
}

export function describeSysctl(key: SysctlKey): string {
  return key.join('.');
}

function on(link: LinkSelector | undefined): string {
  return link ? ` dev ${describeSelector(link)}` : '';
}

function describeObject(step: Step): string {
  switch (step.type) {
    case 'link.add':
      return step.kind === 'veth' ? `veth ${step.name} peer ${step.peer.name}` : `${step.kind} ${step.name}`;
    case 'link.set':
    case 'link.delete':
    case 'link.get':
      return describeSelector(step.link);
    case 'address.add':
    case 'address.replace':
    case 'address.delete':
      return `${step.address}${on(step.link)}`;
    case 'route.add':
    case 'route.replace':
    case 'route.delete':
      return `${step.destination}${step.gateway === undefined ? '' : ` via ${step.gateway}`}${on(step.output)}`;
    case 'rule.add':
    case 'rule.delete':
      return `from ${step.source} lookup ${step.table}`;
    case 'neighbour.add':
    case 'neighbour.replace':
    case 'neighbour.delete':
      return `${step.proxy === true ? 'proxy ' : ''}${step.address}${on(step.link)}`;
    case 'fdb.add':
    case 'fdb.replace':
    case 'fdb.append':
    case 'fdb.delete':
      return `${step.mac}${on(step.link)}${step.destination === undefined ? '' : ` dst ${step.destination}`}`;
    case 'qdisc.replace':
    case 'qdisc.delete':
    case 'qdisc.get':
      return `root${on(step.link)}`;
    case 'sysctl.write':
      return describeSysctl(step.key);
  }
}

/** Operation and object of a step in the notation of `ip`. */
export function describe(step: Step): Described {
  return { operation: step.type, object: describeObject(step) };
}
