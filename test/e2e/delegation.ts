import { mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { expect } from 'vitest';

import { callCni, makePod, removePod, type CniCall, type Pod } from '../support/pods.js';
import { rpc } from '../support/programs.js';
import { SHIM } from '../support/root.js';
import { Stack } from '../support/stack.js';

export const PEERS = '/usr/lib/cni';

interface Result {
  readonly cniVersion: string;
  readonly ips: readonly { readonly address: string; readonly gateway?: string }[];
  readonly routes?: readonly { readonly dst: string; readonly gw?: string }[];
  readonly dns?: object;
}

/** A node with plugins of other projects and Podwire's in one `CNI_PATH`. */
export class DelegatingNode {
  readonly stack: Stack;
  /** Folder with the shim under its name as IPAM plugin. */
  readonly bin = mkdtempSync(join(tmpdir(), 'podwire-delegation-'));
  readonly #pods: Pod[] = [];

  constructor(env: Readonly<Record<string, string>> = {}) {
    this.stack = new Stack({ env });
    symlinkSync(SHIM, join(this.bin, 'podwire-ipam'));
  }

  pod(name: string): Pod {
    const made = makePod(`delegation-${name}`);
    this.#pods.push(made);
    return made;
  }

  call(command: string, pod: Pod, rest: Partial<CniCall> = {}) {
    const { stack, bin } = this;
    const env = { CNI_PATH: `${bin}:${PEERS}`, ...rest.env };
    return callCni({ command, pod, socket: stack.sockets.node, node: stack.netnsPath, ...rest, env });
  }

  async add(pod: Pod, rest: Partial<CniCall> = {}): Promise<Result> {
    const answer = await this.call('ADD', pod, rest);
    expect(answer, answer.stdout + this.stack.log('node')).toMatchObject({ exitCode: 0, stderr: '' });
    return JSON.parse(answer.stdout);
  }

  /** The attachments that IPAM holds addresses for, without the node's gateways. */
  holders(): string[] {
    return this.#held().filter((holder) => !holder.startsWith('podwire-gateway-'));
  }

  /** The gateways that IPAM holds for the node. */
  gateways(): string[] {
    return this.#held().filter((holder) => holder.startsWith('podwire-gateway-'));
  }

  async destroy(): Promise<void> {
    await this.stack.destroy();
    this.#pods.forEach(removePod);
    rmSync(this.bin, { recursive: true });
  }

  /** The addresses of each pod that podwire-ipam knows with addresses of another IPAM plugin. */
  otherEndpoints(): string[] {
    return this.#endpoints().flatMap(({ attachment, addresses }) =>
      attachment ? [] : [addresses.map(({ address }) => address).join(' ')],
    );
  }

  /** One text each: `container addresses`. */
  #held(): string[] {
    return this.#endpoints().flatMap(({ attachment, addresses }) =>
      attachment ? [`${attachment.containerId} ${addresses.map(({ address }) => address).join()}`] : [],
    );
  }

  #endpoints(): readonly {
    readonly attachment?: { readonly containerId: string; readonly interfaceName: string };
    readonly addresses: readonly { readonly address: string }[];
  }[] {
    const page = rpc(this.stack.sockets.ipam, 'podwire.ipam.v1.EndpointService/ListEndpoints', { pageSize: 1000 });
    const { endpoints = [] } = JSON.parse(JSON.stringify(page));
    return endpoints;
  }
}

/** The address of a family in a result, without its length. */
export function addressOf({ ips }: Result, family: 4 | 6 = 4): string {
  const found = ips.find(({ address }) => address.includes(':') === (family === 6));
  return found?.address.split('/')[0] ?? '';
}
