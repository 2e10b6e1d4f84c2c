import type {
  Attempt,
  Cluster,
  Labels,
  RawClusterPeer,
  RawClusterPolicy,
  RawClusterRule,
  RawNetworkPolicy,
  RawNamespace,
  RawPeer,
  RawPod,
  RawPort,
  RawProtocol,
  RawRule,
  RawSelector,
  RawSubject,
} from './cluster.js';

const NAMESPACES = ['red', 'blue', 'green'];
const NODES = ['n1', 'n2', 'n3'];
const KEYS = ['app', 'tier'];
const VALUES = ['web', 'db', 'constructor'];
const PORTS = [53, 80, 81, 443];
const PORT_NAMES = ['http', 'dns'];
const PROTOCOLS = ['TCP', 'UDP', 'SCTP'] as const;
const CIDRS = [
  '0.0.0.0/0',
  '10.0.0.0/28',
  '10.0.0.4/30',
  '10.0.0.5/32',
  '192.0.2.0/24',
  '::/0',
  'fd00::/124',
  'fd00::4/126',
];
const OUTSIDE = ['192.0.2.7', '2001:db8::7'];
const OPERATORS = ['In', 'NotIn', 'Exists', 'DoesNotExist'];

/** Random objects, always the same for a seed. */
export class RandomCluster {
  #state: number;
  #created = 0;

  constructor(seed: number) {
    this.#state = seed;
  }

  /** 0 (included) to 1 (excluded), by a linear congruential generator. */
  next(): number {
    this.#state = (Math.imul(this.#state, 1_664_525) + 1_013_904_223) >>> 0;
    return this.#state / 2 ** 32;
  }

  pick<Item>(items: readonly Item[]): Item {
    const item = items[Math.floor(this.next() * items.length)];
    if (item === undefined) throw new Error('nothing to pick from');
    return item;
  }

  cluster(): Cluster {
    return {
      namespaces: NAMESPACES.map((name) => this.namespace(name)),
      pods: this.#several(2, 8, (index) => this.pod(`p${index}`)),
      networkPolicies: this.#several(0, 4, (index) => this.networkPolicy(`np${index}`)),
      clusterPolicies: this.#several(0, 3, (index) => this.clusterPolicy(`cnp${index}`)),
    };
  }

  namespace(name = this.pick(NAMESPACES)): RawNamespace {
    return { metadata: { name, labels: { 'kubernetes.io/metadata.name': name, ...this.#labels() } } };
  }

  pod(name = `p${this.#index(8)}`): RawPod {
    const namespace = NAMESPACES[Number(name.slice(1)) % NAMESPACES.length] ?? '';
    const number = this.#index(16);
    const isDual = this.#chance(0.5);
    const isSix = this.#chance(0.3);
    const podIPs = [
      ...(isDual || !isSix ? [{ ip: `10.0.0.${number}` }] : []),
      ...(isDual || isSix ? [{ ip: number === 0 ? 'fd00::' : `fd00::${number.toString(16)}` }] : []),
    ];
    return {
      metadata: { name, namespace, uid: `uid-${++this.#created}`, labels: this.#labels() },
      spec: {
        nodeName: this.pick(NODES),
        hostNetwork: this.#chance(0.1),
        containers: this.#several(1, 2, () => ({ ports: this.#several(0, 2, () => this.#containerPort()) })),
        initContainers: this.#several(0, 1, () => ({ ports: [this.#containerPort()] })),
      },
      status: { phase: this.pick(['Running', 'Running', 'Running', 'Pending', 'Succeeded', 'Failed']), podIPs },
    };
  }

  networkPolicy(name = `np${this.#index(4)}`): RawNetworkPolicy {
    const namespace = NAMESPACES[Number(name.slice(2)) % NAMESPACES.length] ?? '';
    return {
      metadata: { name, namespace },
      spec: {
        ...this.#maybe(0.8, () => ({ podSelector: this.#selector() })),
        ...this.#maybe(0.7, () => ({ policyTypes: this.pick([['Ingress'], ['Egress'], ['Ingress', 'Egress'], []]) })),
        ...this.#maybe(0.8, () => ({ ingress: this.#several(0, 2, () => this.#rule('from')) })),
        ...this.#maybe(0.8, () => ({ egress: this.#several(0, 2, () => this.#rule('to')) })),
      },
    };
  }

  clusterPolicy(name = `cnp${this.#index(3)}`): RawClusterPolicy {
    return {
      metadata: { name },
      spec: {
        tier: this.pick(['Admin', 'Baseline']),
        priority: this.#index(3),
        subject: this.#subject(),
        ...this.#maybe(0.8, () => ({ ingress: this.#several(0, 3, () => this.#clusterRule('from')) })),
        ...this.#maybe(0.8, () => ({ egress: this.#several(0, 3, () => this.#clusterRule('to')) })),
      },
    };
  }

  /** No end is an address that two running pods have: which of them names a port is not defined. */
  attempt({ pods }: Cluster): Attempt {
    const addressesOf = (some: readonly RawPod[]): string[] =>
      some.flatMap(({ status }) => status?.podIPs?.map(({ ip }) => ip) ?? []);
    const running = addressesOf(
      pods.filter(({ spec, status }) => !spec.hostNetwork && !['Succeeded', 'Failed'].includes(status?.phase ?? '')),
    );
    const addresses = addressesOf(pods).filter((ip) => running.filter((each) => each === ip).length <= 1);
    const source = this.pick([...addresses, ...OUTSIDE]);
    const isOfFamily = (address: string): boolean => address.includes(':') === source.includes(':');
    const destination = this.pick([...addresses, ...OUTSIDE].filter(isOfFamily));
    if (this.#chance(0.1)) return { source, destination, protocol: 'ICMP', port: 0 };
    return { source, destination, protocol: this.pick(PROTOCOLS), port: this.pick(PORTS) };
  }

  #rule(side: 'from' | 'to'): RawRule {
    return {
      ...this.#maybe(0.8, () => ({ [side]: this.#several(0, 3, () => this.#peer()) })),
      ...this.#maybe(0.6, () => ({ ports: this.#several(0, 2, () => this.#port()) })),
    };
  }

  #peer(): RawPeer {
    if (this.#chance(0.3)) {
      const except = this.#several(0, 2, () => this.pick(CIDRS));
      return { ipBlock: { cidr: this.pick(CIDRS), ...this.#maybe(0.6, () => ({ except })) } };
    }
    const kind = this.#index(3);
    return {
      ...(kind === 1 ? {} : { podSelector: this.#selector() }),
      ...(kind === 0 ? {} : { namespaceSelector: this.#selector() }),
    };
  }

  #port(): RawPort {
    const protocol = this.#maybe(0.8, () => ({ protocol: this.pick(PROTOCOLS) }));
    const port = this.pick(PORTS);
    return this.pick<RawPort>([
      protocol,
      { ...protocol, port },
      { ...protocol, port: this.pick(PORT_NAMES) },
      { ...protocol, port, endPort: port + this.#index(400) },
    ]);
  }

  #clusterRule(side: 'from' | 'to'): RawClusterRule {
    return {
      action: this.pick(['Accept', 'Deny', 'Pass']),
      [side]: this.#several(1, 3, () => this.#clusterPeer(side)),
      ...this.#maybe(0.5, () => ({ protocols: this.#several(1, 2, () => this.#protocol()) })),
    };
  }

  #clusterPeer(side: 'from' | 'to'): RawClusterPeer {
    if (side === 'to' && this.#chance(0.3)) return { networks: this.#several(1, 2, () => this.pick(CIDRS)) };
    if (side === 'to' && this.#chance(0.05)) return { domainNames: ['example.org'] };
    return this.#subject();
  }

  #protocol(): RawProtocol {
    const port = this.pick(PORTS);
    const range = { start: port, end: port + 1 + this.#index(400) };
    const destinationPort = this.#chance(0.5) ? { number: port } : { range };
    return this.pick<RawProtocol>([
      { tcp: { destinationPort } },
      { udp: { destinationPort } },
      { sctp: { destinationPort } },
      { destinationNamedPort: this.pick(PORT_NAMES) },
    ]);
  }

  #subject(): RawSubject {
    if (this.#chance(0.5)) return { namespaces: this.#selector() };
    return { pods: { namespaceSelector: this.#selector(), podSelector: this.#selector() } };
  }

  #selector(): RawSelector {
    return {
      ...this.#maybe(0.4, () => ({ matchLabels: this.#labels() })),
      ...this.#maybe(0.4, () => ({
        matchExpressions: this.#several(0, 2, () => {
          const operator = this.pick(OPERATORS);
          const values = operator.endsWith('In') ? { values: this.#several(1, 2, () => this.pick(VALUES)) } : {};
          return { key: this.pick(KEYS), operator, ...values };
        }),
      })),
    };
  }

  #labels(): Labels {
    return Object.fromEntries(this.#several(0, 2, () => [this.pick(KEYS), this.pick(VALUES)] as const));
  }

  #containerPort() {
    return {
      ...this.#maybe(0.8, () => ({ name: this.pick(PORT_NAMES) })),
      containerPort: this.pick(PORTS),
      ...this.#maybe(0.7, () => ({ protocol: this.pick(PROTOCOLS) })),
    };
  }

  #several<Item>(least: number, most: number, make: (index: number) => Item): Item[] {
    return Array.from({ length: least + this.#index(most - least + 1) }, (_, index) => make(index));
  }

  #maybe<Part extends object>(probability: number, make: () => Part): Part | Record<string, never> {
    return this.#chance(probability) ? make() : {};
  }

  #index(count: number): number {
    return Math.floor(this.next() * count);
  }

  #chance(probability: number): boolean {
    return this.next() < probability;
  }
}
