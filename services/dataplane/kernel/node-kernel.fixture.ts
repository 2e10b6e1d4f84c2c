import type { NodeKernel } from '../routes/kernel.js';
import type { NodeRoute, WantedVxlan } from '../routes/wanted.js';

/** A node's kernel to test, and what people and other programs do to it. */
export interface NodeKernelFixture {
  readonly kernel: NodeKernel;
  /** Carries out a command of `ip`, `bridge` or `sysctl` on the node. */
  readonly byHand: (command: string) => void;
  /** An interface, up, with an MTU of 1500 bytes and addresses. */
  readonly addParent: (name: string, ...addresses: readonly string[]) => void;
  /** Takes everything away. */
  readonly destroy: () => Promise<void>;
}

export const vxlan: WantedVxlan = {
  kind: 'vxlan',
  name: 'vxlan4.podwire',
  vni: 4096,
  port: 4789,
  local: '10.0.0.1',
  parent: 'up0',
  mac: '66:00:00:00:00:01',
  mtuBytes: 1450,
  address: '10.65.0.1/32',
};

export const unicast = (destination: string, gateway: string | undefined, by = vxlan.name): NodeRoute => ({
  destination,
  type: 'unicast',
  device: by,
  gateway,
  onlink: gateway !== undefined,
  source: undefined,
});

export const blackhole = (destination: string): NodeRoute => ({
  ...unicast(destination, undefined),
  type: 'blackhole',
  device: undefined,
});
