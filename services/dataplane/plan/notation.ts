import type { LinkChange, LinkSpec, Neighbour, Route, Rule, Side, Step, SysctlKey } from '../wiring/step.js';

/** Plans in the notation of `ip` and `sysctl`, for messages, logs and tests. The pod's namespace is written as `pod`. */

/** The command that does the same as the step. */
export function formatStep(step: Step): string {
  switch (step.type) {
    case 'link-add':
      return ip(step, `link add ${formatSpec(step.link)} type veth peer name ${formatSpec(step.peer)} netns pod`);
    case 'link-delete':
      return ip(step, `link delete ${step.name}`);
    case 'link-set':
      return ip(step, `link set ${step.name}${formatChange(step.change)}`);
    case 'address-add':
      return ip(step, `address add ${step.address} dev ${step.device}${withoutDad(step.address)}`);
    case 'address-set':
      return ip(step, `address replace ${step.address} dev ${step.device}${withoutDad(step.address)}`);
    case 'address-delete':
      return ip(step, `address delete ${step.address} dev ${step.device}`);
    case 'route-add':
      return ip(step, `route add ${formatRoute(step.route)}`);
    case 'route-replace':
      return ip(step, `route replace ${formatRoute(step.route)}`);
    case 'route-delete':
      return ip(step, `route delete ${formatRoute(step.route)}`);
    case 'rule-add':
      return ip(step, `rule add ${formatRule(step.rule)}`);
    case 'rule-delete':
      return ip(step, `rule delete ${formatRule(step.rule)}`);
    case 'neighbour-set':
      return ip(step, `neighbour replace ${formatNeighbour(step.neighbour)}`);
    case 'neighbour-delete':
      return ip(step, `neighbour delete ${step.neighbour.address} dev ${step.neighbour.device}`);
    case 'sysctl-write':
      return `${step.side === 'pod' ? 'ip netns exec pod ' : ''}sysctl -w ${formatKey(step.key)}=${step.value}`;
  }
}

/** `default via 169.254.1.1 dev eth0 proto 87`, as `ip route` prints it. */
export function formatRoute({ destination, gateway, device, protocol, scope, metric, table, onlink }: Route): string {
  return [
    formatDestination(destination),
    gateway === undefined ? '' : ` via ${gateway}`,
    ` dev ${device} proto ${protocol}`,
    scope === 'link' ? ' scope link' : '',
    metric === 0 ? '' : ` metric ${metric}`,
    onlink ? ' onlink' : '',
    table === undefined ? '' : ` table ${table}`,
  ].join('');
}

/** `from 10.65.0.7 lookup 1459617793 priority 30087 protocol 87`. */
export function formatRule({ source, table, priority, protocol }: Rule): string {
  return `from ${formatDestination(source)} lookup ${table} priority ${priority} protocol ${protocol}`;
}

/** Duplicate address detection would keep an address from being used for a second. */
function withoutDad(cidr: string): string {
  return cidr.includes(':') ? ' nodad' : '';
}

/** A CIDR as `ip route` prints it: `default`, and single addresses without their length. */
export function formatDestination(cidr: string): string {
  const [address = '', length] = cidr.split('/');
  if (length === '0') return 'default';
  return length === (address.includes(':') ? '128' : '32') ? address : cidr;
}

/** `169.254.1.1 dev eth0 lladdr ee:ee:ee:ee:ee:ee nud permanent`. */
export function formatNeighbour({ address, device, mac }: Neighbour): string {
  return `${address} dev ${device} lladdr ${mac} nud permanent`;
}

/** As `sysctl` writes keys: dots between the segments, and a slash for a dot within one. */
export function formatKey(key: SysctlKey): string {
  return key.map((segment) => segment.replaceAll('.', '/')).join('.');
}

function ip({ side }: { readonly side: Side }, command: string): string {
  return `ip ${side === 'pod' ? '-n pod ' : ''}${command}`;
}

function formatSpec({ name, mac, mtuBytes, txQueueLength, queueCount }: LinkSpec): string {
  return [
    `${name} address ${mac} mtu ${mtuBytes}`,
    txQueueLength === undefined ? '' : ` txqueuelen ${txQueueLength}`,
    queueCount === undefined ? '' : ` numtxqueues ${queueCount} numrxqueues ${queueCount}`,
  ].join('');
}

function formatChange({ up, alias, mac, mtuBytes, txQueueLength }: LinkChange): string {
  return [
    mac === undefined ? '' : ` address ${mac}`,
    mtuBytes === undefined ? '' : ` mtu ${mtuBytes}`,
    txQueueLength === undefined ? '' : ` txqueuelen ${txQueueLength}`,
    alias === undefined ? '' : ` alias ${JSON.stringify(alias)}`,
    up === undefined ? '' : up ? ' up' : ' down',
  ].join('');
}
