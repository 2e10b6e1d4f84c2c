// The demonstration, inside the node's own namespaces: starts Podwire's two processes, gives two pods a network through
// the real CNI binary, shows that they reach each other, and takes everything away again.
// usage (by start.mjs): demo.mjs FOLDER
import process from 'node:process';
import { setImmediate as nextTurn } from 'node:timers/promises';

import { PluginSocket } from '@podwire/ctl/clients/plugin-socket';
import { GrpcService } from '@podwire/ctl/clients/services';
import { summarizeAdds } from '@podwire/ctl/commands/node/add-summary';
import { nodePage } from '@podwire/ctl/commands/page/page-data';
import { pageServer } from '@podwire/ctl/commands/page/page-server';
import { systemClock } from '@podwire/shared/runtime/clock';
import { PHASES } from '@podwire/shared/telemetry/phases';

import { NAMESPACE, runShim, makePod } from './cni.mjs';
import { NODE_ADDRESS, setUpNode, takeDownNode } from './node.mjs';
import { pinger } from './ping.mjs';
import { NODE_NAME, startPodwire } from './podwire.mjs';
import { Processes } from './processes.mjs';
import { Rollout } from './rollout.mjs';
import { Starter } from './starter.mjs';
import { ms, table } from './table.mjs';

const PODS = ['web-0', 'web-1'];

/** Timeout of a request to podwire-node, in milliseconds. */
const READ_TIMEOUT_MS = 5000;

/** Cycles after the demonstration's first, cold ones: enough for the just-in-time compilers to settle. */
const WARM_CYCLES = 60;

const say = (text) => process.stdout.write(`${text}\n`);

/** Podwire's processes, as podwirectl calls them. */
function clientsOf({ sockets }) {
  let deadlineAtMs = 0;
  const restartTimeout = () => (deadlineAtMs = systemClock.nowMs() + READ_TIMEOUT_MS);
  restartTimeout();
  const common = { option: 'npm start', clock: systemClock, deadlineMs: () => deadlineAtMs };
  const traceCommand = () => Promise.resolve();
  const grpc = (name, socket) => new GrpcService({ name, address: `unix:${socket}`, traceCommand, ...common });
  return {
    ipam: grpc('podwire-ipam', sockets.ipam),
    dataplane: grpc('podwire-node', sockets.dataplane),
    plugin: () => Promise.resolve(new PluginSocket({ path: sockets.cni, ...common })),
    clock: systemClock,
    restartTimeout,
  };
}

/** Adds the two pods and prints the result of each, and where the time of its ADD went. */
async function addPods({ folder, podwire }) {
  const pods = [];
  for (const name of PODS) {
    const netns = makePod(folder, name);
    pods.push({ name, netns, result: (await runShim(podwire, { command: 'ADD', name, netns })).result });
  }
  const plugin = await clientsOf(podwire).plugin();
  const { newest } = summarizeAdds([await plugin.commands()]);
  const phases = PHASES.filter((phase) => newest.some((add) => add.phases.some((part) => part.phase === phase)));
  const rows = pods.map(({ name, result }) => {
    const add = newest.find(({ pod }) => pod === `${NAMESPACE}/${name}`);
    const times = phases.map((phase) => ms(add.phases.find((part) => part.phase === phase)?.ms ?? 0));
    return [name, result.ips[0].address, result.interfaces[0].name, ms(add.durationMs), ...times];
  });
  say(`\n${table(['pod', 'address', 'host interface', 'ADD ms', ...phases], rows)}`);
  say('  the first ADDs of a process are its slowest; below is what comes after');
  return pods.map(({ name, netns, result }) => ({ name, netns, address: result.ips[0].address.split('/')[0] }));
}

/** @returns whether every ping was answered */
function pingAll(folder, [a, b]) {
  const ping = pinger(folder);
  say(`\npings (${ping.description})`);
  const ways = [
    { from: a.name, netns: a.netns, to: b.name, address: b.address },
    { from: b.name, netns: b.netns, to: a.name, address: a.address },
    { from: 'node', netns: undefined, to: a.name, address: a.address },
    { from: 'node', netns: undefined, to: b.name, address: b.address },
    { from: a.name, netns: a.netns, to: 'node', address: NODE_ADDRESS },
    { from: b.name, netns: b.netns, to: 'node', address: NODE_ADDRESS },
  ];
  const answers = ways.map((way) => {
    const answer = ping.send(way);
    say(`  ${answer.ok ? '✓' : '✗'} ${way.from} → ${way.to} (${way.address})  ${answer.text}`);
    return answer.ok;
  });
  return answers.every(Boolean);
}

/** One pod after the other, as a busy node sees them: the cost of a warm ADD and DEL. */
async function measureWarm({ folder, podwire }) {
  const netns = makePod(folder, 'batch');
  const times = { ADD: [], DEL: [] };
  for (let cycle = 0; cycle < WARM_CYCLES; cycle++) {
    for (const command of ['ADD', 'DEL'])
      times[command].push((await runShim(podwire, { command, name: `batch-${cycle}`, netns })).elapsedMs);
  }
  const median = (list) => list.slice(list.length / 2).sort((x, y) => x - y)[Math.floor(list.length / 4)];
  say(
    `\n${WARM_CYCLES} more pods, one after the other: ADD ${ms(median(times.ADD))} ms, DEL ${ms(median(times.DEL))} ms (median of the last half, exec to exit)`,
  );
}

async function showPools(podwire) {
  const { pools } = await podwire.rpc('ipam', 'podwire.ipam.v1.PoolService/ListPools');
  const rows = pools.map(({ name, cidr, utilization: u }) => [
    name,
    cidr,
    u.capacity,
    u.allocated ?? '0',
    u.free,
    u.blocks ?? '0',
    `${((100 * Number(u.allocated ?? 0)) / Number(u.capacity)).toFixed(3)} %`,
  ]);
  say(`\n${table(['pool', 'CIDR', 'addresses', 'in use', 'free', 'blocks', 'utilisation'], rows)}`);
}

function showCommands({ sockets, logFolder }, pods, namespacesPid) {
  const node = `sudo nsenter -t ${namespacesPid} -n -m`;
  const [{ name, netns, address }] = pods;
  say(`
try, in another terminal in this folder:
  export PODWIRE_NODE_IPAM_ADDRESS=unix:${sockets.ipam}
  export PODWIRE_NODE_LISTEN=unix:${sockets.dataplane} PODWIRE_NODE_CNI_SOCKET=${sockets.cni}
  npx podwirectl status
  npx podwirectl who ${address}
  npx podwirectl history ${NAMESPACE}/${name}
  npx podwirectl explain ${NODE_NAME}
  npx podwirectl audit
  npx podwirectl node status
  npx podwirectl pods check
  npx podwirectl trace ${NAMESPACE}/${name}
  npx buf curl --protocol grpc --http2-prior-knowledge --unix-socket ${sockets.ipam} --list-methods http://localhost
  grpcurl -plaintext -unix ${sockets.ipam} podwire.ipam.v1.PoolService/ListPools
  grpcurl -plaintext -unix -d '{"kinds":["WATCH_KIND_ROUTES"]}' ${sockets.ipam} podwire.ipam.v1.WatchService/Watch
  curl --unix-socket ${sockets.cni} http://localhost/healthz
the node's routes, and what ${name} sees:
  ${node} ip route
  ${node} nsenter --net=${netns} ip addr
logs: ${logFolder}`);
}

const IPAM = 'podwire-ipam';
const ACTIONS = { stop: `Stop ${IPAM}`, start: `Start ${IPAM}` };

/** Serves the page at a socket of the machine's loopback; pods come and go while the page is open. */
function servePage({ folder, podwire, processes, socket }) {
  const rollout = new Rollout({ folder, podwire, hasIpam: () => processes.isRunning(IPAM) });
  const read = nodePage(clientsOf(podwire));
  const page = pageServer({
    read: async () => {
      rollout.viewed();
      const name = processes.isRunning(IPAM) ? 'stop' : 'start';
      return { ...(await read()), actions: [{ name, text: ACTIONS[name] }] };
    },
    actions: {
      stop: () => processes.stop(IPAM),
      start: () => Promise.resolve(processes.resume(IPAM)),
    },
  });
  socket.on('connection', (connection) => page.emit('connection', connection));
  say(`\nwhere the milliseconds go, live: http://127.0.0.1:${socket.address().port}/`);
  say(`  its button stops ${IPAM}; pods are added nevertheless, with addresses that the node has leased`);
  return rollout;
}

/** Ctrl-C reaches this process, too; any other end of start.mjs closes the pipe between them. */
function untilStopped(starter) {
  const signalled = new Promise((resolve) => {
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, resolve);
  });
  return Promise.race([signalled, starter.gone]);
}

async function main([folder]) {
  const starter = new Starter();
  const stopped = untilStopped(starter);
  let isStopped = false;
  void stopped.then(() => (isStopped = true));
  const processes = new Processes();
  let ok = false;
  try {
    const { namespacesPid, pageSocket, hasCollector } = await starter.greeting;
    setUpNode(folder);
    const collectorUrl = hasCollector ? await starter.collectorUrl() : undefined;
    const podwire = await startPodwire({ folder, processes, collectorUrl });
    const pods = await addPods({ folder, podwire });
    const answered = pingAll(folder, pods);
    await measureWarm({ folder, podwire });
    await showPools(podwire);
    if (pageSocket !== undefined) {
      showCommands(podwire, pods, namespacesPid);
      processes.restartAfterEnd(IPAM);
      const rollout = servePage({ folder, podwire, processes, socket: pageSocket });
      say('\nrunning; Ctrl-C takes everything away');
      await Promise.race([stopped, processes.unexpectedEnd(), rollout.failed()]);
      await rollout.stop();
    }
    for (const { name, netns } of pods) await runShim(podwire, { command: 'DEL', name, netns });
    ok = answered;
  } catch (error) {
    // Ctrl-C also ends programs that the demonstration waits for, perhaps before it is noticed here.
    await nextTurn();
    if (!isStopped) process.stderr.write(`\nthe demonstration failed: ${error.message}\n`);
  }
  await processes.stopAll();
  takeDownNode(folder);
  say(`\n${ok ? 'done' : isStopped ? 'stopped' : 'ended with a failure'}: everything taken away`);
  process.exit(ok ? 0 : 1);
}

await main(process.argv.slice(2));
