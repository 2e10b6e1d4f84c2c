// The dashboards against the truth: every panel has data, and questions of an operator are answered by panels alone.
import { NAMESPACE } from '../../../deploy/kubernetes/checksum.mjs';
import { DASHBOARDS, panelQueries } from '../../../deploy/observability/dist/dashboards.js';
import { restrictedLoad } from './policies.mjs';
import { expectExemplars, expectOneTrace, expectSamplingKeepsFailures } from './traces.mjs';
import { sleep, until } from './wait.mjs';

/** Replacement for Grafana's interval; Prometheus scrapes every 2 s. */
const INTERVAL = '1m';
const SOON = 90;
const ETCD_DELAY_MS = 50;
const SLOW_PODS_COUNT = 6;
const POOL = 'filling';
/** The table of the packet filter that cuts a node off. */
const CUT = 'cluster_test_cut';
const IPV4_POOLS = 'cni.projectcalico.org/ipv4pools';
/** Such a pod gets no leased address: podwire-ipam allocates it. */
const REQUESTS_POOL = { [IPV4_POOLS]: JSON.stringify(['pods-ipv4']) };
/** More pods than a node has leases. */
const MANY_PODS_COUNT = 30;

/** Metrics of the store `kubernetes`; the dashboards run beside etcd. */
const OTHER_STORE = /\bpodwire_ipam_(leader|kubernetes_\w+)\b/;

const QUERIES = panelQueries(INTERVAL).filter(
  ({ language, expression }) => language === 'promql' && !OTHER_STORE.test(expression),
);

/** The series of a panel's only query. */
async function panel({ observability }, title) {
  const found = QUERIES.filter((query) => query.panel === title);
  if (found.length !== 1) throw new Error(`panel “${title}”: has ${found.length} queries`);
  return observability.query(found[0].expression);
}

const largest = (series) => series.reduce((a, b) => (b.value > (a?.value ?? -Infinity) ? b : a), undefined);

async function expectPanel(cluster, { title, what, isAnswer }) {
  /** The last one with values: a window without ADDs has none. */
  let shown = [];
  const answered = async () => {
    const series = await panel(cluster, title);
    if (series.some(({ value }) => Number.isFinite(value))) shown = series;
    return isAnswer(series);
  };
  await until(what, answered, SOON, () => JSON.stringify(shown));
}

async function load({ cluster, namespace }, name, replicas = 6) {
  await cluster.deployment({ namespace, name, replicas });
  await cluster.running(namespace, replicas);
  await cluster.deployment({ namespace, name, replicas: 0 });
  await cluster.running(namespace, 0);
}

/** A pod whose trace leads through podwire-ipam. */
async function allocatedPod({ cluster, namespace }) {
  await cluster.pod({ namespace, name: 'allocated', node: cluster.nodes[0].name, annotations: REQUESTS_POOL });
  await cluster.running(namespace, 1);
  await cluster.api.remove('Pod', namespace, 'allocated', 0);
  await cluster.running(namespace, 0);
}

/** The windows of panels slide on while further ones are still empty, so each panel has to have data once. */
async function everyPanelHasData({ cluster }) {
  let empty = QUERIES;
  const isComplete = async () => {
    const results = await Promise.all(
      empty.map(async (query) => ({ ...query, series: await cluster.observability.query(query.expression) })),
    );
    empty = results.filter(({ series }) => !series.some(({ value }) => Number.isFinite(value)));
    return empty.length === 0;
  };
  await until('every panel to have data', isComplete, SOON, () =>
    empty.map(({ dashboard, panel: title, expression }) => `\n${dashboard}: ${title}: ${expression}`).join(''),
  );
}

/**
 * Finds the phase that makes pods slow. The pods come one after the other: most of several at a time would wait for the
 * transactions of earlier pods.
 */
async function slowEtcd({ cluster, namespace }) {
  const title = 'Mean ADD by phase';
  const hasNone = (series) => series.every(({ value }) => Number.isNaN(value));
  await expectPanel(cluster, { title, what: 'earlier ADDs to be out of the panel’s window', isAnswer: hasNone });
  const names = Array.from({ length: SLOW_PODS_COUNT }, (_, index) => `slow-${index}`);
  cluster.podwire.etcd.slowDown(ETCD_DELAY_MS);
  try {
    for (const [index, name] of names.entries()) {
      const node = cluster.nodes[index % cluster.nodes.length].name;
      await cluster.pod({ namespace, name, node, annotations: REQUESTS_POOL });
      await cluster.running(namespace, index + 1);
    }
    const isDatastore = (series) => {
      const { labels, value } = largest(series) ?? { labels: {}, value: 0 };
      return labels.phase === 'datastore' && value > ETCD_DELAY_MS / 1000;
    };
    await expectPanel(cluster, { title, what: 'the datastore to be the slowest phase', isAnswer: isDatastore });
  } finally {
    cluster.podwire.etcd.slowDown(0);
  }
  for (const name of names) await cluster.api.remove('Pod', namespace, name, 0);
  await cluster.running(namespace, 0);
}

/** Cuts a node off from podwire-ipam while `during` runs; established connections, too. */
async function withoutPathToIpam({ machine }, during) {
  const chain = 'chain out { type filter hook output priority 0; tcp dport 9650 drop; }';
  machine.run('nft', [`table inet ${CUT} { ${chain}; }`]);
  try {
    await during();
  } finally {
    machine.run('nft', ['delete', 'table', 'inet', CUT]);
  }
}

/** Finds the node that fails, and the reason. It can add pods until its leases are used up, unless they request a pool. */
async function disconnectedNode({ cluster, namespace }) {
  const node = cluster.nodes[1];
  const isNode = ({ labels }) => labels.instance?.startsWith(`${node.ipv4}:`);
  const many = Array.from({ length: MANY_PODS_COUNT }, (_, index) => `leased-${index}`);
  await withoutPathToIpam(node, async () => {
    await cluster.pod({ namespace, name: 'waits', node: node.name, annotations: REQUESTS_POOL });
    for (const name of many) await cluster.pod({ namespace, name, node: node.name });
    await expectPanel(cluster, {
      title: 'Nodes that cannot add pods',
      what: 'the node and podwire-ipam to be named',
      isAnswer: (series) =>
        series.some((each) => isNode(each) && each.labels.reason === 'ipam' && each.value === 1) &&
        !series.some((each) => !isNode(each) && each.value === 1),
    });
    await expectPanel(cluster, {
      title: 'Failed ADDs by node',
      what: 'the failed ADD to be counted on the node only',
      isAnswer: (series) => series.some(isNode) && series.every((each) => isNode(each) || each.value === 0),
    });
    for (const name of many) await cluster.api.remove('Pod', namespace, name, 0);
  });
  await cluster.running(namespace, 1);
  await cluster.api.remove('Pod', namespace, 'waits', 0);
  await cluster.running(namespace, 0);
}

/** When will the pool be full? */
async function fillingPool({ cluster, namespace }) {
  const { podwire } = cluster;
  await podwire.podwirectl(['create', 'ippool', POOL, 'cidr=10.67.0.0/27', 'assignmentMode=Manual', 'blockSize=28']);
  const free = async () => (await panel(cluster, 'Free addresses')).find(({ labels }) => labels.ippool === POOL)?.value;
  await until('the pool to be shown', async () => (await free()) !== undefined, SOON);
  const annotations = { [IPV4_POOLS]: JSON.stringify([POOL]) };
  const start = { free: await free(), ms: Date.now() };
  const names = Array.from({ length: 8 }, (_, index) => `fills-${index}`);
  for (const [index, name] of names.entries()) {
    await cluster.pod({ namespace, name, node: cluster.nodes[0].name, annotations });
    await cluster.running(namespace, index + 1);
    await sleep(2000);
  }
  await until('the pool to be less free', async () => (await free()) <= start.free - names.length, SOON);
  const left = await free();
  const rate = (start.free - left) / ((Date.now() - start.ms) / 1000);
  const isNear = ({ value }) => value > left / rate / 3 && value < (left / rate) * 3;
  await expectPanel(cluster, {
    title: 'Time until a pool is full',
    what: `the pool to be full in about ${Math.round(left / rate)} s`,
    isAnswer: (series) => series.some((each) => each.labels.ippool === POOL && isNear(each)),
  });
  for (const name of names) await cluster.api.remove('Pod', namespace, name, 0);
  await cluster.running(namespace, 0);
  // The runtime releases the addresses of pods that were deleted by force a moment later.
  await until('the pool to be deleted', () => podwire.podwirectl(['delete', 'ippool', POOL, '--yes']), SOON);
}

/** Finds the pod that leaked an address: its endpoint is lost, and its allocation is old. */
async function leakedAddress({ cluster, namespace }) {
  const { api, podwire } = cluster;
  await cluster.pod({ namespace, name: 'leaks', node: cluster.nodes[0].name });
  await cluster.running(namespace, 1);
  const [pod] = await api.list('Pod', namespace);
  const [address] = cluster.addressesOf(pod);
  podwire.etcd.loseEndpoint(namespace, 'leaks');
  const isNamed = ({ labels }) => labels.object?.includes(address);
  try {
    await expectPanel(cluster, {
      title: 'Leaked addresses and other findings',
      what: `the address ${address} of the pod to be named`,
      isAnswer: (series) => series.some(isNamed),
    });
  } finally {
    await api.remove('Pod', namespace, 'leaks', 0);
    await cluster.running(namespace, 0);
  }
}

/** The chart installs each dashboard, as Grafana's sidecar looks for it. */
async function expectInstalled({ api }) {
  const maps = await api.list('ConfigMap', NAMESPACE, 'grafana_dashboard=1');
  const titles = maps.flatMap(({ data }) => Object.values(data).map((text) => JSON.parse(text).title));
  const missing = DASHBOARDS.filter(({ title }) => !titles.includes(title));
  if (missing.length > 0) throw new Error(`not installed: ${missing.map(({ title }) => title).join(', ')}`);
}

export async function dashboards(context) {
  const { cluster } = context;
  await expectInstalled(cluster);
  await load(context, 'first');
  await allocatedPod(context);
  await expectOneTrace(cluster.observability);
  await expectExemplars(cluster.observability);
  await slowEtcd(context);
  await disconnectedNode(context);
  await expectSamplingKeepsFailures(cluster.observability);
  await fillingPool(context);
  await leakedAddress(context);
  await load(context, 'last');
  await allocatedPod(context);
  await restrictedLoad(context);
  await everyPanelHasData(context);
  const unreachable = await cluster.observability.unreachableTargets();
  if (unreachable.length > 0) throw new Error(`not scraped: ${unreachable.join('; ')}`);
}
