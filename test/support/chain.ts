import { basename, join } from 'node:path';

import { callCni, type CniAnswer, type Pod } from './pods.js';
import { SHIM } from './root.js';
import type { Stack } from './stack.js';

/** Where Debian's containernetworking-plugins are. */
const PLUGINS = '/usr/lib/cni';

/** A plugin of a chain: its keys of the configuration, `type` among them. */
export type ChainMember = Readonly<Record<string, unknown>> & { readonly type: string };

export interface Chain {
  readonly stack: Stack;
  readonly cniVersion: string;
  readonly members: readonly ChainMember[];
}

/** Calls a chain as a container runtime does: each plugin with the result of earlier ones; DEL in reverse, with the last. */
export class ChainRun {
  readonly #chain: Chain;
  readonly #pod: Pod;
  /** Result of the whole chain. */
  result: object | undefined;

  constructor(chain: Chain, pod: Pod) {
    this.#chain = chain;
    this.#pod = pod;
  }

  /** @returns the result of each plugin, up to the first that failed */
  async add(): Promise<readonly CniAnswer[]> {
    const answers: CniAnswer[] = [];
    for (const member of this.#chain.members) {
      const answer = await this.#call('ADD', member);
      answers.push(answer);
      if (answer.exitCode !== 0) break;
      this.result = JSON.parse(answer.stdout);
    }
    return answers;
  }

  async check(): Promise<readonly CniAnswer[]> {
    const answers: CniAnswer[] = [];
    for (const member of this.#chain.members) answers.push(await this.#call('CHECK', member));
    return answers;
  }

  async del(): Promise<readonly CniAnswer[]> {
    const answers: CniAnswer[] = [];
    for (const member of this.#chain.members.toReversed()) answers.push(await this.#call('DEL', member));
    return answers;
  }

  #call(command: string, member: ChainMember): Promise<CniAnswer> {
    const { stack, cniVersion } = this.#chain;
    const type = basename(member.type);
    return callCni({
      command,
      pod: this.#pod,
      socket: stack.sockets.node,
      node: stack.netnsPath,
      program: type === 'podwire' ? SHIM : join(PLUGINS, type),
      config: { cniVersion, ipam: undefined, ...member, prevResult: this.result },
    });
  }
}
