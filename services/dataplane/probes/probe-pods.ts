import { closeSync } from 'node:fs';
import { mkdir, readdir, rename, rm, symlink } from 'node:fs/promises';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { parseJson } from '@podwire/shared/json/parse';
import type { Family } from '@podwire/shared/net/address';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import { z } from 'zod';

import { listenIn, makeProbeNamespace } from '../kernel/probe-kernel.js';

/** Network of probe pods, which no runtime uses: its garbage collection leaves them alone. */
export const PROBE_NETWORK = 'podwire-probe';

/** Port that probe pods answer. */
const POD_PORT = 8080;

const MAX_PODS = 32;

/** A test whose calls stop for this long was killed: its pods are deleted. */
const IDLE_MS = 60_000;

/** Suffix of the names of pods of an earlier process. */
const LEFT = '.left';

const RESULT = z.object({ ips: z.array(z.object({ address: z.string() })) });
const REFUSAL = z.object({ msg: z.string(), details: z.string().default('') });

interface CniAnswer {
  readonly status: number;
  readonly body: Uint8Array;
}

interface ProbePodsOptions {
  /** Directory with a name for each pod: a link to its network namespace. */
  readonly directory: string;
  /** Runs a command of the node's CNI server. @throws Failure UNREACHABLE */
  readonly cni: (headers: Readonly<Record<string, string>>, body: string) => Promise<CniAnswer>;
  readonly clock: Clock;
  readonly random: () => number;
  readonly log: Logger;
}

interface ProbePodRequest {
  readonly run: string;
  readonly families: readonly Family[];
  readonly hostPort: number;
}

export interface ProbePod {
  readonly containerId: string;
  /** IPv4 before IPv6. */
  readonly addresses: readonly string[];
  readonly mtuBytes: number;
}

interface OwnPod {
  readonly containerId: string;
  readonly run: string;
  /** Descriptors of its namespace and its listening socket. */
  readonly descriptors: number[];
}

/**
 * Renames the pods of an earlier process, before other parts start: their namespaces ended with it, and the descriptor that a
 * name leads to may be another one by now.
 */
export async function setProbePodsAside(directory: string): Promise<void> {
  await mkdir(directory, { recursive: true, mode: 0o700 });
  const names = await readdir(directory);
  for (const name of names.filter((each) => !each.endsWith(LEFT)))
    await rename(join(directory, name), join(directory, name + LEFT));
}

/** Pods of tests of connectivity, added and deleted through the node's CNI server as a container runtime does. */
export class ProbePods {
  readonly #options: ProbePodsOptions;
  readonly #pods = new Map<string, OwnPod>();
  /** Cancels the end of a test whose calls stop; keyed by the test. */
  readonly #idle = new Map<string, () => void>();

  constructor(options: ProbePodsOptions) {
    this.#options = options;
  }

  /** Deletes the pods that {@link setProbePodsAside} found. A pod whose DEL fails stays for the next process. */
  async deleteLeftovers(): Promise<void> {
    const { directory, log } = this.#options;
    for (const name of (await readdir(directory)).filter((each) => each.endsWith(LEFT))) {
      try {
        await this.#delete(name.slice(0, -LEFT.length));
        await rm(join(directory, name), { force: true });
      } catch (error) {
        log.warn({ err: error }, `probe pod ${name}: its DEL failed; the next start of podwire-node repeats it`);
      }
    }
  }

  /** @throws Failure */
  async add({ run, families, hostPort }: ProbePodRequest): Promise<ProbePod> {
    if (this.#pods.size >= MAX_PODS)
      throw new Failure('TOO_MANY_REQUESTS', `probe pods: the node has ${MAX_PODS}; run connectivity test --cleanup`);
    const { directory, random } = this.#options;
    const containerId = `${PROBE_NETWORK}-${run}-${Math.floor(random() * 2 ** 32).toString(16)}`;
    const path = join(directory, containerId);
    const pod: OwnPod = { containerId, run, descriptors: [] };
    this.#pods.set(containerId, pod);
    this.touch(run);
    try {
      const descriptor = await makeProbeNamespace();
      pod.descriptors.push(descriptor);
      await symlink(`/proc/self/fd/${descriptor}`, path);
      const body = JSON.stringify(configuration(families, hostPort));
      const { ips } = RESULT.parse(parseJson(await this.#command('ADD', containerId, body)));
      const { descriptor: socket, mtuBytes } = await listenIn(path, POD_PORT, INTERFACE);
      pod.descriptors.push(socket);
      return { containerId, addresses: ips.map(({ address }) => address.replace(/\/.*$/, '')), mtuBytes };
    } catch (error) {
      await this.#remove(pod).catch(() => undefined);
      throw error;
    }
  }

  /** A call of a test: its pods stay for a while. */
  touch(run: string): void {
    this.#idle.get(run)?.();
    const end = (): void =>
      void this.remove(run).catch((error: unknown) =>
        this.#options.log.warn({ err: error }, `probe pods of test ${run}: the DEL failed`),
      );
    this.#idle.set(run, this.#options.clock.after(IDLE_MS, end));
  }

  /** As {@link touch}, for the test of a pod. */
  touchPod(containerId: string): void {
    const pod = this.#pods.get(containerId);
    if (pod) this.touch(pod.run);
  }

  /** Deletes the pods of a test, or of all tests for an empty text. @returns their number @throws Failure of the first DEL */
  async remove(run: string): Promise<number> {
    const pods = [...this.#pods.values()].filter((pod) => run === '' || pod.run === run);
    for (const pod of pods) await this.#remove(pod);
    return pods.length;
  }

  /** Idempotent. Pods are left to the next process, as the CNI server has ended. */
  close(): void {
    for (const cancel of this.#idle.values()) cancel();
  }

  async #remove(pod: OwnPod): Promise<void> {
    await this.#delete(pod.containerId);
    await rm(join(this.#options.directory, pod.containerId), { force: true });
    for (const descriptor of pod.descriptors.splice(0)) closeSync(descriptor);
    this.#pods.delete(pod.containerId);
    if ([...this.#pods.values()].some(({ run }) => run === pod.run)) return;
    this.#idle.get(pod.run)?.();
    this.#idle.delete(pod.run);
  }

  async #delete(containerId: string): Promise<void> {
    await this.#command('DEL', containerId, JSON.stringify(configuration([4], 0)));
  }

  async #command(command: 'ADD' | 'DEL', containerId: string, body: string): Promise<string> {
    const { cni, directory } = this.#options;
    const headers = {
      'cni-command': command,
      'cni-containerid': containerId,
      'cni-netns': join(directory, containerId),
      'cni-ifname': INTERFACE,
      'cni-args': 'IgnoreUnknown=1',
      'cni-path': '/opt/cni/bin',
    };
    const answer = await cni(headers, body);
    const text = Buffer.from(answer.body).toString();
    if (answer.status === 200) return text;
    const refusal = REFUSAL.safeParse(parseJson(text));
    const reason = refusal.success ? `${refusal.data.msg} ${refusal.data.details}` : text;
    throw new Failure('UNREACHABLE', `CNI ${command} of a probe pod: ${reason.trim()}`);
  }
}

const INTERFACE = 'eth0';

function configuration(families: readonly Family[], hostPort: number) {
  const ipam = {
    type: 'podwire-ipam',
    assign_ipv4: String(families.includes(4)),
    assign_ipv6: String(families.includes(6)),
  };
  const portMappings = hostPort === 0 ? [] : [{ hostPort, containerPort: POD_PORT, protocol: 'tcp' }];
  return { cniVersion: '1.0.0', name: PROBE_NETWORK, type: 'podwire', ipam, runtimeConfig: { portMappings } };
}
