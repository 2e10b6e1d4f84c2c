import { closeSync } from 'node:fs';
import { mkdir, readdir, rename, rm, symlink } from 'node:fs/promises';
import { join } from 'node:path';

import type { AddProbePodResponse } from '@podwire/proto/podwire/dataplane/v1/probe';
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

interface OwnPod {
  readonly containerId: string;
  readonly run: string;
  /** Descriptors of its namespace and its listening socket. */
  readonly descriptors: number[];
  /** Cancels its deletion after {@link IDLE_MS}. */
  cancelDeletion: () => void;
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
  async add({ run, families, hostPort }: ProbePodRequest): Promise<AddProbePodResponse> {
    if (this.#pods.size >= MAX_PODS)
      throw new Failure('TOO_MANY_REQUESTS', `probe pods: the node has ${MAX_PODS}; run connectivity test --cleanup`);
    const { directory, random } = this.#options;
    const containerId = `${PROBE_NETWORK}-${run}-${Math.floor(random() * 2 ** 32).toString(16)}`;
    const path = join(directory, containerId);
    const pod: OwnPod = { containerId, run, descriptors: [], cancelDeletion: () => undefined };
    this.#pods.set(containerId, pod);
    this.touch(containerId);
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

  /** A call of a test: its pod, if it is one, stays for a while. */
  touch(containerId: string): void {
    const { clock, log } = this.#options;
    const pod = this.#pods.get(containerId);
    if (!pod) return;
    pod.cancelDeletion();
    pod.cancelDeletion = clock.after(IDLE_MS, () => {
      this.#remove(pod).catch((error: unknown) => log.warn({ err: error }, `probe pod ${containerId}: its DEL failed`));
    });
  }

  /** Deletes the pods of a test, or of all tests for an empty text. @returns their number @throws Failure of the first DEL */
  async remove(run: string): Promise<number> {
    const pods = [...this.#pods.values()].filter((pod) => run === '' || pod.run === run);
    for (const pod of pods) await this.#remove(pod);
    return pods.length;
  }

  /** Idempotent. Pods are left to the next process, as the CNI server has ended. */
  close(): void {
    for (const pod of this.#pods.values()) pod.cancelDeletion();
  }

  async #remove(pod: OwnPod): Promise<void> {
    await this.#delete(pod.containerId);
    await rm(join(this.#options.directory, pod.containerId), { force: true });
    for (const descriptor of pod.descriptors.splice(0)) closeSync(descriptor);
    this.#pods.delete(pod.containerId);
    pod.cancelDeletion();
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
