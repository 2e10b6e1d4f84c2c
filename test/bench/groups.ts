import type { Figure } from './figure.js';
import { measureCni, measureCniAnswers, measureCniOnEtcd, measureCniStorm } from './groups/cni.js';
import { measureDataplane } from './groups/dataplane.js';
import { measureFloors } from './groups/floors.js';
import { measureIpamFlood } from './groups/ipam-flood.js';
import { measureIpamScale } from './groups/ipam-scale.js';
import { measureIpam } from './groups/ipam.js';
import { measureNode } from './groups/node.js';
import { measurePolicies } from './groups/policies.js';
import { measurePolicyCost } from './groups/policy-cost.js';
import { measureRuntime } from './groups/runtime.js';

/** The groups of measurements, each alternating in one run with its comparison. */
export const GROUPS: Readonly<Record<string, (report: (line: string) => void) => Promise<Figure[]>>> = {
  cni: measureCni,
  'cni-answers': measureCniAnswers,
  'cni-etcd': measureCniOnEtcd,
  'cni-storm': measureCniStorm,
  dataplane: measureDataplane,
  floors: measureFloors,
  ipam: measureIpam,
  'ipam-flood': measureIpamFlood,
  'ipam-scale': measureIpamScale,
  node: measureNode,
  policies: measurePolicies,
  'policy-cost': measurePolicyCost,
  runtime: measureRuntime,
};
