import { PodServiceService } from '@podwire/proto/podwire/dataplane/v1/pod';
import { ProbeServiceService, type TracePacketsResponse } from '@podwire/proto/podwire/dataplane/v1/probe';
import type { Endpoint } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { NetworkPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/network_policy';
import { Failure } from '@podwire/shared/failure/failure';
import { familyOf, type Family } from '@podwire/shared/net/address';

import type { Context, Service } from '../../clients/services.js';
import { oneOf, POD_NAME, wholeNumber } from '../../command-line/forms.js';
import { argument, option, type Verb } from '../../command-line/verb.js';
import { DONE, PROBLEM_FOUND, sentence, type Table } from '../../output/report.js';
import { listNodeStates } from '../../resources/node.js';
import { listEndpoints } from '../../resources/workloadendpoint.js';
import { isPassed, NODE_TIMEOUT_MS, testedNode, type Check, type CheckResult, type TestedNode } from './checks.js';
import { breakingPoint, errorText } from './diagnosis.js';

const SOURCE = argument(POD_NAME, 'the pod that sends', 'required');
const DESTINATION = argument(POD_NAME, 'the pod that answers', 'required');
const FAMILY = option(
  '--family',
  oneOf<Family>({ 4: 4, 6: 6 }),
  'family of the addresses (the first that both pods have)',
);
const PORT = option('--port', wholeNumber('PORT', { min: 1, max: 65_535 }), 'connect to this TCP port (a ping)');

const TIMEOUT_MS = 60_000;
const TRACE_MS = 3000;
/** Until the trace is ready on a busy node, and until a second packet, should it not have been. */
const PAUSES_MS = [1000, 500] as const;

const ICMP: Readonly<Record<Family, number>> = { 4: 1, 6: 58 };
const TCP = 6;

/** One hop of the path, as the plan has it and as the kernel has it. */
interface Hop {
  readonly node: string;
  readonly hop: string;
  readonly plan: string;
  readonly found: string;
  readonly ok: boolean;
}

/** A pod on its node. */
interface PodEnd {
  readonly endpoint: Endpoint;
  readonly node: TestedNode;
  readonly service: Service;
  readonly address: string;
}

export const tracePath: Verb = {
  name: 'trace path',
  about: 'the path between two running pods: by plan and kernel, and by a packet that is followed through nftables',
  details:
    'Sends two packets from inside the first pod, and follows them and their answers on the nodes of both pods for 3 s.\n' +
    'Exit code 4: no answer arrives, or a hop differs from its plan.',
  positionals: [SOURCE, DESTINATION],
  options: [FAMILY, PORT],
  examples: ['trace path default/bot-0 default/web-0', 'trace path default/bot-0 default/web-0 --port 8080'],
  run: async (input, context) => {
    context.restartTimeout(TIMEOUT_MS);
    const [first, second] = [
      await endpointOf(input.at(SOURCE), context),
      await endpointOf(input.at(DESTINATION), context),
    ];
    const [from, to] = await endsOf([first, second], input.get(FAMILY), context);
    const port = input.get(PORT) ?? 0;
    const policy = await policyHop(from, to, { port, ipam: context.ipam });
    const traced = await follow(from, to, { port, context });
    const { broken, traces, nodes } = traced;
    const hops = [
      await interfaceHop(from),
      policy,
      routeHop(from, to, traces[0]?.route),
      routeHop(to, to, traces[1]?.route),
      await interfaceHop(to),
    ];
    const isAnswered = isPassed(broken);
    const point = isAnswered
      ? undefined
      : breakingPoint({
          broken,
          all: nodes,
          source: from.node,
          target: to.node,
          sourceTrace: traces[0],
          targetTrace: traces[1],
        });
    const steps = [
      stepsTable(from, traces[0]),
      ...(to.node.name === from.node.name ? [] : [stepsTable(to, traces[1])]),
    ];
    const end = point
      ? `${errorText(broken)}: the path ends at ${point.place} of ${point.node}: ${point.detail}`
      : `${to.address} answers in ${(broken.result.timeUs / 1000).toFixed(1)} ms`;
    return {
      sections: [hopsTable(hops), ...steps, sentence(end)],
      data: () => ({
        answered: isAnswered,
        ends: point ? { ...point } : null,
        hops: hops.map((hop) => ({ ...hop })),
        steps: traces.map((trace) => (trace?.steps ?? []).map((step) => ({ ...step }))),
      }),
      exitCode: isAnswered && hops.every(({ ok }) => ok) ? DONE : PROBLEM_FOUND,
    };
  },
};

async function endpointOf(
  { namespace, name }: { readonly namespace: string; readonly name: string },
  { ipam }: Context,
): Promise<Endpoint> {
  const found = await listEndpoints(ipam, { namespace, pod: name });
  const [latest] = found.toSorted((a, b) => (b.createTime?.getTime() ?? 0) - (a.createTime?.getTime() ?? 0));
  if (latest) return latest;
  throw new Failure(
    'ENDPOINT_NOT_FOUND',
    `pod "${namespace}/${name}": no address is recorded; see podwirectl get workloadendpoints -A`,
  );
}

async function endsOf(
  endpoints: readonly [Endpoint, Endpoint],
  family: Family | undefined,
  { ipam, onNode }: Context,
): Promise<readonly [PodEnd, PodEnd]> {
  const addresses = endpoints.map((endpoint) => endpoint.addresses.map(({ address }) => address.replace(/\/.*/, '')));
  const chosen = ([4, 6] as const).find(
    (each) => (family ?? each) === each && addresses.every((own) => own.some((address) => familyOf(address) === each)),
  );
  if (!chosen)
    throw new Failure(
      'INVALID_REQUEST',
      'the pods have no addresses of the same family; see podwirectl get workloadendpoints -A',
    );
  const states = await listNodeStates(ipam);
  const end = async (endpoint: Endpoint): Promise<PodEnd> => {
    const state = states.find(({ name }) => name === endpoint.nodeName);
    if (!state) throw new Failure('NODE_NOT_FOUND', `there is no node "${endpoint.nodeName}"; see podwirectl status`);
    const own = endpoint.addresses.map(({ address }) => address.replace(/\/.*/, ''));
    const address = own.find((each) => familyOf(each) === chosen) ?? '';
    return { endpoint, node: testedNode(state), service: await onNode(state.name, NODE_TIMEOUT_MS), address };
  };
  return [await end(endpoints[0]), await end(endpoints[1])];
}

/** The answer, or undefined where the node or podwire-ipam refuses the call. The reason then is a note of the hop. */
async function attempt<Answer>(call: () => Promise<Answer>): Promise<Answer | Failure> {
  try {
    return await call();
  } catch (error) {
    if (error instanceof Failure) return error;
    throw error;
  }
}

async function interfaceHop({
  endpoint: { attachment, hostInterfaceName },
  node,
  service,
  address,
}: PodEnd): Promise<Hop> {
  const answer = await attempt(() =>
    service.call(PodServiceService.checkPod, { recorded: attachment, pod: undefined }),
  );
  const hop = { node: node.name, hop: 'interface', plan: `${hostInterfaceName}, ${address}` };
  if (answer instanceof Failure) return { ...hop, found: answer.message, ok: false };
  const differences = answer.differences.map(({ object, actual }) => `${object}: ${actual}`);
  return {
    ...hop,
    found: differences.length === 0 ? 'as planned' : differences.join('; '),
    ok: differences.length === 0,
  };
}

async function policyHop(
  from: PodEnd,
  to: PodEnd,
  { port, ipam }: { readonly port: number; readonly ipam: Service },
): Promise<Hop> {
  const request = {
    source: { end: { $case: 'address', value: from.address } },
    destination: { end: { $case: 'address', value: to.address } },
    protocol: port > 0 ? TCP : ICMP[familyOf(to.address)],
    port: port > 0 ? String(port) : '',
  } as const;
  const answer = await attempt(() => ipam.call(NetworkPolicyServiceService.explainPolicy, request));
  const hop = { node: to.node.name, hop: 'policy', plan: 'allowed' };
  if (!(answer instanceof Failure))
    return { ...hop, found: answer.allowed ? 'allowed' : 'denied; see podwirectl policy explain', ok: answer.allowed };
  return {
    ...hop,
    plan: '',
    found: answer.code === 'POLICIES_NOT_SERVED' ? 'no network policies are served' : answer.message,
    ok: true,
  };
}

/** The route of a node to the pod: to its interface on the pod's own node, else by a tunnel or to the other node. */
function routeHop(at: PodEnd, to: PodEnd, route: string | undefined): Hop {
  const isOwn = at.node.name === to.node.name;
  const devices = isOwn ? [to.endpoint.hostInterfaceName] : at.node.tunnels;
  const plan = isOwn ? `dev ${to.endpoint.hostInterfaceName}` : `to ${to.node.name}, proto 87 or 12`;
  const isPlanned = isOwn
    ? devices.some((device) => route?.includes(` dev ${device} `))
    : / proto (87|12)$/.test(route ?? '');
  return {
    node: at.node.name,
    hop: `route to ${to.address}`,
    plan,
    found: route === undefined ? 'unknown' : route === '' ? 'none' : route,
    ok: isPlanned,
  };
}

async function follow(
  from: PodEnd,
  to: PodEnd,
  { port, context }: { readonly port: number; readonly context: Context },
) {
  const target = { kind: 'pod', name: 'pod', node: to.node.name, address: to.address, port } as const;
  const containerId = from.endpoint.attachment?.containerId ?? '';
  const family = familyOf(to.address);
  const check: Check = {
    kind: 'pod-pod',
    family,
    node: from.node.name,
    containerId,
    address: from.address,
    target,
    packetBytes: 0,
  };
  const [, otherAddress = ''] = [family, to.node.addresses.find((address) => familyOf(address) === family)];
  const probe = { address: to.address, port, packetBytes: 0 };
  const request = {
    sourceAddress: from.address,
    destinationAddress: to.address,
    durationMs: TRACE_MS,
    anySource: false,
  };
  const trace = async ({ service, node }: PodEnd): Promise<TracePacketsResponse | undefined> => {
    const answer = await attempt(() => service.call(ProbeServiceService.tracePackets, request));
    if (answer instanceof Failure) context.note(`${node.name}: no trace: ${answer.message}`);
    return answer instanceof Failure ? undefined : answer;
  };
  const isSame = from.node.name === to.node.name;
  const traced = Promise.all([trace(from), isSame ? undefined : trace(to)]);
  const results: CheckResult[] = [];
  for (const pauseMs of PAUSES_MS) {
    await context.clock.sleep(pauseMs, new AbortController().signal);
    const answer = await from.service.call(ProbeServiceService.runProbes, { containerId, probes: [probe], waitMs: 0 });
    results.push(...answer.results.map((result) => ({ check, result })));
  }
  const nodeProbe = { address: otherAddress, port: 0, packetBytes: 0 };
  const between =
    isSame || otherAddress === ''
      ? undefined
      : await from.service.call(ProbeServiceService.runProbes, { containerId: '', probes: [nodeProbe], waitMs: 0 });
  const nodeCheck = {
    ...check,
    kind: 'node-node',
    containerId: '',
    target: { ...target, kind: 'node', address: otherAddress },
  } as const;
  const nodes = (between?.results ?? []).map((result) => ({ check: nodeCheck, result }));
  const [own, other] = await traced;
  const [broken] = results.toSorted((a, b) => Number(isPassed(b)) - Number(isPassed(a)));
  if (!broken)
    throw new Failure('UNREACHABLE', `${from.node.name}: no result of the packet; see the log of podwire-node`);
  return { broken, nodes, traces: [own, isSame ? own : other] as const };
}

function hopsTable(hops: readonly Hop[]): Table {
  const rows = hops.map(({ node, hop, plan, found, ok }) => [node, hop, ok ? 'ok' : 'differs', plan, found]);
  return { kind: 'table', columns: ['NODE', 'HOP', 'STATE', 'PLAN', 'KERNEL'], rows, none: '' };
}

/** The first packet, and the first answer. */
function stepsTable({ node }: PodEnd, trace: TracePacketsResponse | undefined): Table {
  const steps = trace?.steps ?? [];
  const destinationOf = (text: string): string =>
    / daddr ([\da-f.:]+\.[\d.]+|[\da-f:]*:[\da-f:]* ?)(?= |$)/.exec(text)?.[1] ?? text;
  const firsts = new Map<string, string>();
  for (const { kind, text, packetId } of steps)
    if (kind === 'packet' && !firsts.has(destinationOf(text))) firsts.set(destinationOf(text), packetId);
  const shown = steps.filter(({ packetId }) => [...firsts.values()].includes(packetId));
  const rows = shown.map(({ packetId, table, chain, kind, text, verdict, inputInterface, outputInterface }) => [
    packetId,
    table,
    chain,
    kind === 'packet' ? [inputInterface, outputInterface].filter((each) => each !== '').join(' → ') : kind,
    verdict,
    kind === 'packet' ? '' : text,
  ]);
  return {
    kind: 'table',
    title: `packets on ${node.name}`,
    columns: ['PACKET', 'TABLE', 'CHAIN', 'STEP', 'VERDICT', 'RULE'],
    rows,
    none: `packets on ${node.name}: none seen`,
  };
}
