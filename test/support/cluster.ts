import { rpc, run } from './programs.js';
import { Stack } from './stack.js';

/** One of the two subnets that nodes are in. */
export type Subnet = 'a' | 'b';

/** Ranges for documentation (RFC 5737, RFC 3849), by the number of bits of the subnet. */
const NETWORKS: Readonly<Record<Subnet | 'outside', { readonly ipv4: string; readonly ipv6: string }>> = {
  a: { ipv4: '192.0.2', ipv6: '2001:db8:a:' },
  b: { ipv4: '198.51.100', ipv6: '2001:db8:b:' },
  outside: { ipv4: '203.0.113', ipv6: '2001:db8:c:' },
};

/** The router's host part in every network. */
const ROUTER = 1;

/** The outside host's host part. */
const OUTSIDE = 2;

export interface ClusterOptions {
  /** The subnet of each node. */
  readonly subnets: readonly Subnet[];
  /** Settings of all nodes beside the settings that join them. */
  readonly env?: Readonly<Record<string, string>>;
  /** The name of each node; node-1, node-2, … by default. */
  readonly names?: readonly string[];
  /** Sockets of running replicas of podwire-ipam, which the nodes use in turns. By default one runs beside the first node. */
  readonly ipamSockets?: readonly string[];
}

export interface Node {
  readonly name: string;
  readonly stack: Stack;
  readonly ipv4: string;
  readonly ipv6: string;
}

let clusters = 0;

/**
 * Nodes in two subnets joined by a router, and an outside host with routes to the nodes but not to their pods. Each
 * node is a network namespace with its own dataplane and plugin; they share one podwire-ipam.
 */
export class Cluster {
  readonly nodes: readonly Node[];
  readonly #id = `${process.pid}-${clusters++}`;
  readonly #router = `router-${this.#id}`;
  readonly #outside = `outside-${this.#id}`;
  readonly #subnets: readonly Subnet[];
  readonly #hasOwnIpam: boolean;

  constructor({ subnets, env = {}, names = [], ipamSockets = [] }: ClusterOptions) {
    this.#makeRouter();
    this.#makeOutside();
    this.#subnets = subnets;
    this.#hasOwnIpam = ipamSockets.length === 0;
    const stacks: Stack[] = [];
    this.nodes = subnets.map((subnet, index) => {
      const name = names[index] ?? `node-${index + 1}`;
      const host = hostOf(index);
      const { ipv4, ipv6 } = NETWORKS[subnet];
      const ipamSocket = ipamSockets[index % ipamSockets.length] ?? stacks[0]?.sockets.ipam;
      const stack = new Stack({ ipamSocket, env: { ...nodeSettings(name), ...env } });
      stacks.push(stack);
      this.#connect(stack.netns, subnet, host);
      return { name, stack, ipv4: `${ipv4}.${host}`, ipv6: `${ipv6}:${host}` };
    });
  }

  /** The outside host's addresses. */
  readonly outside = { ipv4: `${NETWORKS.outside.ipv4}.${OUTSIDE}`, ipv6: `${NETWORKS.outside.ipv6}:${OUTSIDE}` };

  /** Path of the outside host's network namespace. */
  get outsideNetns(): string {
    return `/run/netns/${this.#outside}`;
  }

  /** Name of the router's network namespace. */
  get routerNetns(): string {
    return this.#router;
  }

  /** Starts podwire-ipam with these pools, and then every node. */
  async start(pools: readonly object[]): Promise<void> {
    if (this.#hasOwnIpam) await this.nodes[0]?.stack.start('ipam');
    for (const pool of pools) this.ipam('PoolService/CreatePool', { pool });
    await Promise.all(this.nodes.map(({ stack }) => stack.start('node')));
  }

  /** Calls podwire-ipam. */
  ipam(method: string, request: object = {}): unknown {
    const [first] = this.nodes;
    if (!first) throw new Error('a cluster has a node');
    return rpc(first.stack.sockets.ipam, `podwire.ipam.v1.${method}`, request);
  }

  /** Ends everything and removes it. */
  async destroy(): Promise<void> {
    for (const { stack } of [...this.nodes].reverse()) await stack.destroy();
    run('ip', 'netns', 'delete', this.#outside);
    run('ip', 'netns', 'delete', this.#router);
  }

  /** A power failure of a node, as {@link Stack.powerCycle}; it is connected again, and its podwire-node has to be started. */
  async powerCycle(at: number): Promise<void> {
    const [node, subnet] = [this.nodes[at], this.#subnets[at]];
    if (!node || !subnet) throw new Error('there is no such node');
    // The kernel removes the interfaces of a namespace some time after it.
    node.stack.ip('link', 'delete', 'eth0');
    await node.stack.powerCycle();
    this.#connect(node.stack.netns, subnet, hostOf(at));
  }

  /** Removes a node's only interface, with its addresses and routes, and creates it again, with another MAC address. */
  replaceUplink(at: number): void {
    const [node, subnet] = [this.nodes[at], this.#subnets[at]];
    if (!node || !subnet) throw new Error('there is no such node');
    node.stack.ip('link', 'delete', 'eth0');
    this.#connect(node.stack.netns, subnet, hostOf(at));
  }

  #makeRouter(): void {
    run('ip', 'netns', 'add', this.#router);
    writeSysctl(this.#router, 'net/ipv4/ip_forward');
    writeSysctl(this.#router, 'net/ipv6/conf/all/forwarding');
    for (const subnet of ['a', 'b'] as const) {
      run('ip', '-n', this.#router, 'link', 'add', switchOf(subnet), 'type', 'bridge');
      addAddresses({ netns: this.#router, device: switchOf(subnet), network: subnet, host: ROUTER });
    }
  }

  #makeOutside(): void {
    run('ip', 'netns', 'add', this.#outside);
    run(
      'ip',
      '-n',
      this.#router,
      'link',
      'add',
      'outside',
      'type',
      'veth',
      'peer',
      'name',
      'eth0',
      'netns',
      this.#outside,
    );
    addAddresses({ netns: this.#router, device: 'outside', network: 'outside', host: ROUTER });
    addAddresses({ netns: this.#outside, device: 'eth0', network: 'outside', host: OUTSIDE });
    const { ipv4, ipv6 } = NETWORKS.outside;
    for (const subnet of ['a', 'b'] as const) {
      const { ipv4: near4, ipv6: near6 } = NETWORKS[subnet];
      run('ip', '-n', this.#outside, 'route', 'add', `${near4}.0/24`, 'via', `${ipv4}.${ROUTER}`);
      run('ip', '-n', this.#outside, '-6', 'route', 'add', `${near6}:/64`, 'via', `${ipv6}:${ROUTER}`);
    }
  }

  #connect(netns: string, subnet: Subnet, host: number): void {
    const port = `port-${host}`;
    run('ip', '-n', this.#router, 'link', 'add', port, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', netns);
    run('ip', '-n', this.#router, 'link', 'set', port, 'master', switchOf(subnet), 'up');
    addAddresses({ netns, device: 'eth0', network: subnet, host });
    const { ipv4, ipv6 } = NETWORKS[subnet];
    run('ip', '-n', netns, 'route', 'add', 'default', 'via', `${ipv4}.${ROUTER}`);
    run('ip', '-n', netns, '-6', 'route', 'add', 'default', 'via', `${ipv6}:${ROUTER}`);
  }
}

/** A node's host part. */
const hostOf = (index: number): number => 11 + index;

/** The bridge of a subnet, in the router. */
const switchOf = (subnet: Subnet): string => `subnet-${subnet}`;

function nodeSettings(name: string): Record<string, string> {
  return {
    PODWIRE_IPAM_DEFAULT_POOL_CIDR: '',
    PODWIRE_IPAM_UNKNOWN_NODES: 'refuse',
    PODWIRE_NODE_NAME: name,
    PODWIRE_NODE_IPV4: 'auto',
  };
}

interface Interface {
  readonly netns: string;
  readonly device: string;
  readonly network: keyof typeof NETWORKS;
  readonly host: number;
}

function addAddresses({ netns, device, network, host }: Interface): void {
  const { ipv4, ipv6 } = NETWORKS[network];
  run('ip', '-n', netns, 'address', 'add', `${ipv4}.${host}/24`, 'dev', device);
  run('ip', '-n', netns, '-6', 'address', 'add', `${ipv6}:${host}/64`, 'dev', device, 'nodad');
  run('ip', '-n', netns, 'link', 'set', device, 'up');
}

function writeSysctl(netns: string, key: string): void {
  run('nsenter', `--net=/run/netns/${netns}`, 'sh', '-c', `echo 1 > /proc/sys/${key}`);
}
