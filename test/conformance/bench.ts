import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { Hopeless, NotApplicable, type Occasion } from './occasion.js';
import { Namespace } from './machine/namespace.js';
import { execute, run, succeeds, type Outcome } from './machine/program.js';
import { added, kernelHoldings, leases } from './machine/residue.js';
import { errorDocumentFaults, readErrorDocument } from './specification/error-document.js';
import { parseJson } from './specification/json.js';
import { previousResult, type PrecedingInterface } from './specification/previous-result.js';
import { readResult, resultFaults, type Result } from './specification/result.js';
import type { Verb, Version } from './specification/versions.js';
import { filledIn } from './subject.js';

/** A container as its runtime knows it. */
export interface Pod {
  readonly containerId: string;
  readonly namespace: Namespace;
  /** Objects that earlier plugins of the chain made in it. */
  readonly preceding?: PrecedingInterface;
}

/** How the plugin is called: omitted values are the usual ones of a runtime. */
export interface Call {
  readonly pod?: Pod;
  readonly version: Version;
  /** Environment variables that replace the usual ones; undefined removes one. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** Keys of the configuration that replace the usual ones; undefined removes one. */
  readonly config?: Readonly<Record<string, unknown>>;
  /** Standard input instead of a configuration. */
  readonly stdin?: string;
  readonly killAfterMs?: number;
  /** The program to run; the plugin under test when undefined. */
  readonly program?: string;
}

/** Time limit of a plugin call, in milliseconds: longer than any runtime on a busy machine would wait. */
const PATIENCE_MS = 120_000;

/** Time limit for a plugin's leftovers to disappear, in milliseconds. */
const SETTLES_WITHIN_MS = 20_000;

/** The number of newest lines of evidence that a case keeps. */
const EVIDENCE_KEPT = 60;

/** The node's ends of earlier plugins' interfaces: the kit's own, and so not leftovers. */
const FAR_END = 'cnf-far-';

export const NETWORK = 'conformance-net';

let benches = 0;

/** Counted over all cases: on a node that they share, the kernel may still be removing objects of the case before. */
let farEnds = 0;

/** The environment of one case: its node, its containers, and its evidence. */
export class Bench {
  readonly occasion: Occasion;
  readonly faults: string[] = [];
  readonly evidence: string[] = [];
  readonly node: Namespace;
  readonly leases: string;
  readonly #folder = mkdtempSync(join(tmpdir(), 'podwire-conformance-'));
  readonly #namespaces: string[] = [];
  readonly #id: string;
  /** Open DELs, by container and interface. */
  readonly #called = new Map<string, Call>();
  #pods = 0;

  /** @param pid - of this process, part of the names of namespaces */
  constructor(occasion: Occasion, pid: number) {
    this.occasion = occasion;
    this.#id = `cnf-${pid}-${benches++}`;
    this.leases = join(this.#folder, 'leases');
    mkdirSync(this.leases);
    const { nodeNetns, uplink } = occasion.subject;
    this.node = nodeNetns === undefined ? this.#namespace('node') : new Namespace(nodeNetns);
    const links = uplink === undefined ? [] : wireCommands(uplink);
    const own = nodeNetns === undefined ? ['ip link set lo up'] : [];
    if (own.length + links.length > 0) this.node.shell(...own, ...links);
  }

  /** Creates a container. Earlier plugins have run in it if the plugin works on their results, or `isChained`. */
  pod({ isChained = this.occasion.subject.kind === 'meta' } = {}): Pod {
    const number = this.#pods++;
    const namespace = this.#namespace(`pod${number}`);
    const containerId = `${this.#id}-${number}-0123456789abcdef0123456789abcdef`;
    if (!isChained) return { containerId, namespace };
    const name = this.occasion.subject.kind === 'meta' ? this.occasion.subject.interfaceName : 'before0';
    const address = `192.0.2.${number + 2}/24`;
    const far = `${FAR_END}${farEnds++}`;
    namespace.shell(
      `ip link add ${name} type veth peer name ${far} netns ${this.node.path}`,
      `ip address add ${address} dev ${name}`,
      `ip link set ${name} up`,
      `ip route add 198.51.100.0/24 dev ${name}`,
    );
    this.node.ip('link', 'set', far, 'up');
    const macOf = (where: Namespace, link: string) => where.link(link)?.mac ?? '';
    const preceding = { name, mac: macOf(namespace, name), address, sandbox: namespace.path };
    const node = { name: far, mac: macOf(this.node, far) };
    return { containerId, namespace, preceding: { ...preceding, far: node } };
  }

  /** Creates an interface that no plugin knows. */
  foreignInterface({ namespace }: Pod, name = this.occasion.subject.interfaceName): void {
    namespace.shell(...wireCommands(name), `ip address add 203.0.113.7/24 dev ${name}`);
  }

  /** Calls the plugin as a container runtime does. */
  async call(verb: Verb, call: Call): Promise<Outcome> {
    const { program = this.occasion.subject.program, killAfterMs = PATIENCE_MS } = call;
    const enter = this.occasion.subject.nodeNetns === undefined ? ['nsenter', `--net=${this.node.path}`] : [];
    const env = this.#environment(verb, call);
    const stdin = call.stdin ?? JSON.stringify(this.configuration(call));
    if (verb === 'ADD' && call.stdin === undefined && this.occasion.subject.isResident) {
      const owed = { ...call, killAfterMs: PATIENCE_MS };
      this.#called.set(`${env.CNI_CONTAINERID ?? ''} ${env.CNI_IFNAME ?? ''}`, owed);
    }
    const outcome = await execute({ command: [...enter, program], env, stdin, killAfterMs });
    this.#note(outcome);
    if (outcome.signal !== null && call.killAfterMs === undefined) {
      this.fault(`${verb} ended by ${outcome.signal}${outcome.durationMs >= PATIENCE_MS ? ': it did not end' : ''}`);
    }
    return outcome;
  }

  configuration({ version, pod, config = {} }: Call): Readonly<Record<string, unknown>> {
    const template = filledIn(this.occasion.subject.template, this.leases);
    const chained = pod?.preceding === undefined ? {} : { prevResult: previousResult(version, pod.preceding) };
    const all: Record<string, unknown> = { ...template, cniVersion: version, name: NETWORK, ...chained, ...config };
    return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined));
  }

  /** ADD that has to succeed; its answer is checked in a separate case. @throws Hopeless where it fails */
  async add(call: Call): Promise<{ readonly value: unknown; readonly result: Result }> {
    const outcome = await this.call('ADD', call);
    this.expectSuccess('ADD', outcome);
    const value = parseJson(outcome.stdout);
    if (outcome.exitCode !== 0 || value === undefined) throw new Hopeless();
    return { value, result: readResult(call.version, value) };
  }

  /** DEL that has to succeed. */
  async del(call: Call): Promise<void> {
    this.expectSuccess('DEL', await this.call('DEL', call));
  }

  /** ADD and the faults of its answer's form. */
  async checkedAdd(call: Call): Promise<{ readonly value: unknown; readonly result: Result }> {
    const answer = await this.add(call);
    for (const fault of resultFaults(call.version, answer.value)) this.fault(`result: ${fault}`);
    return answer;
  }

  fault(text: string): void {
    this.faults.push(text);
  }

  require(isTrue: boolean, otherwise: string): void {
    if (!isTrue) this.fault(otherwise);
  }

  expectSuccess(what: string, { exitCode, signal, stdout, stderr }: Outcome): void {
    if (exitCode === 0) {
      if (!/^(ADD|VERSION)/.test(what)) this.require(stdout === '', `${what} wrote to standard output`);
      return;
    }
    if (signal !== null) return;
    const said = readErrorDocument(stdout)?.msg ?? (stdout || stderr);
    this.fault(`${what} failed with status ${exitCode}: ${said.trim().slice(0, 300)}`);
  }

  /** The plugin has to fail with an error document. Empty `codes` allow every one. */
  expectError(
    what: string,
    outcome: Outcome,
    { codes = [], names = [] }: { codes?: readonly number[]; names?: readonly string[] } = {},
  ): void {
    if (outcome.signal !== null) return;
    if (outcome.exitCode === 0) {
      this.fault(`${what} succeeded`);
      return;
    }
    for (const fault of errorDocumentFaults(outcome.stdout)) this.fault(`${what}: ${fault}`);
    const said = readErrorDocument(outcome.stdout);
    if (said === undefined) return;
    if (codes.length > 0 && !codes.includes(said.code)) {
      this.fault(`${what}: code is ${said.code} and not ${codes.join(' or ')} ("${said.msg.slice(0, 200)}")`);
    }
    for (const name of names) this.require(said.msg.includes(name), `${what}: the message does not name ${name}`);
  }

  notApplicable(reason: string): never {
    throw new NotApplicable(reason);
  }

  /** The objects of the node and in the plugin's records. */
  async holdings(): Promise<readonly string[]> {
    const { holdings, keeps } = this.occasion.subject;
    const own = (await holdings?.()) ?? [];
    const all = [...kernelHoldings(this.node), ...leases(this.leases), ...own];
    return all.filter((line) => !line.includes(FAR_END) && keeps?.test(line) !== true);
  }

  /**
   * Fails unless there is no more than before. The plugin may still be working for a while.
   * @param what - the call that should have left nothing
   */
  async expectNothingLeft(what: string, before: readonly string[]): Promise<void> {
    const endMs = performance.now() + (this.occasion.settlesWithinMs ?? SETTLES_WITHIN_MS);
    for (;;) {
      const left = added(before, await this.holdings());
      if (left.length === 0) return;
      if (performance.now() > endMs) {
        this.fault(`${what} left: ${left.slice(0, 8).join('; ')}`);
        return;
      }
      await sleep(100);
    }
  }

  /** Fails where a container has an interface besides loopback and the earlier ones, or a process of the plugin's. */
  expectPodEmpty(what: string, pod: Pod): void {
    const own = ['lo', pod.preceding?.name];
    const left = pod.namespace.links().filter(({ name }) => !own.includes(name));
    this.require(left.length === 0, `${what} left ${left.map(({ name }) => name).join()} in the container`);
    const pids = pod.namespace.pids();
    this.require(pids.length === 0, `${what} left processes in the container: ${pids.join()}`);
  }

  /** The container's namespace dies, as with the container. */
  removeNamespace({ namespace }: Pod): void {
    run('ip', 'netns', 'delete', nameOf(namespace));
    this.#namespaces.splice(this.#namespaces.indexOf(nameOf(namespace)), 1);
  }

  /** Records the kernel's state of a container, as evidence. */
  look({ namespace }: Pod): void {
    const commands = ['ip address', 'ip route'];
    this.#keep(`$ nsenter --net=${namespace.path} ${commands.join('; ')}\n${namespace.shell(...commands)}`);
  }

  /** DEL of every container that the plugin was called for, in the versions of its calls. */
  async takeBack(): Promise<void> {
    const calls = [...this.#called.values()];
    this.#called.clear();
    for (const call of calls) await this.call('DEL', { ...call, env: { ...call.env, CNI_NETNS: '' } });
    this.#called.clear();
  }

  /** Removes everything that the case created. */
  dispose(): void {
    // The removal continues if a container is gone.
    succeeds('sh', '-c', 'for name; do ip netns delete "$name"; done', 'sh', ...this.#namespaces);
    rmSync(this.#folder, { recursive: true, force: true });
  }

  #namespace(name: string): Namespace {
    const full = `${this.#id}-${name}`;
    run('ip', 'netns', 'add', full);
    this.#namespaces.push(full);
    return new Namespace(`/run/netns/${full}`);
  }

  #environment(verb: Verb, { pod, env = {} }: Call): Record<string, string> {
    const all: Record<string, string | undefined> = {
      PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
      CNI_COMMAND: verb,
      CNI_PATH: this.occasion.subject.binDir,
      ...(pod && {
        CNI_CONTAINERID: pod.containerId,
        CNI_NETNS: pod.namespace.path,
        CNI_IFNAME: this.occasion.subject.interfaceName,
        CNI_ARGS: 'IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=conformance',
      }),
      ...env,
    };
    return Object.fromEntries(
      Object.entries(all).flatMap(([key, value]) => (value === undefined ? [] : [[key, value]])),
    );
  }

  #note({ command, env, stdin, stdout, stderr, exitCode, signal, durationMs }: Outcome): void {
    const variables = Object.entries(env).flatMap(([name, value]) => (name === 'PATH' ? [] : [`${name}='${value}'`]));
    const lines = [`$ ${variables.join(' ')} ${command.join(' ')} <<< '${stdin.slice(0, 4000)}'`];
    lines.push(`status ${exitCode ?? signal ?? ''} after ${durationMs.toFixed(0)} ms`);
    if (stdout !== '') lines.push(`stdout: ${stdout.trimEnd()}`);
    if (stderr !== '') lines.push(`stderr: ${stderr.trimEnd()}`);
    this.#keep(lines.join('\n'));
  }

  #keep(text: string): void {
    this.evidence.push(text);
    if (this.evidence.length > EVIDENCE_KEPT) this.evidence.shift();
  }
}

function nameOf({ path }: Namespace): string {
  return path.slice('/run/netns/'.length);
}

/** Both ends of a veth pair, in one namespace. */
function wireCommands(name: string): readonly string[] {
  const far = `${name}-far`;
  return [`ip link add ${name} type veth peer name ${far}`, `ip link set ${name} up`, `ip link set ${far} up`];
}
