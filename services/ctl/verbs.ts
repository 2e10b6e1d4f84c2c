import { certificatesCreate } from './certificates/create.js';
import { certificatesRevoke } from './certificates/revoke.js';
import { completion } from './command-line/completion.js';
import type { Verb } from './command-line/verb.js';
import { ipamAssign } from './commands/assign.js';
import { attributesSet, attributesSwap } from './commands/attributes.js';
import { audit } from './commands/audit.js';
import { events } from './commands/events.js';
import { explain } from './commands/explain.js';
import { gc } from './commands/gc.js';
import { history } from './commands/history.js';
import { ipamCheck, ipamConfigure, ipamRelease, ipamShow, ipamSplit } from './commands/ipam.js';
import { latency } from './commands/latency.js';
import { leases, leasesReturn } from './commands/leases.js';
import { policyExplain, policyList, policyStatus } from './commands/policy/policy.js';
import { nodeReady, nodeStatus } from './commands/node.js';
import { podsCheck, podsRepair } from './commands/pods.js';
import { policyDrops } from './commands/policy/drops.js';
import { releaseAddress, releaseAttachment } from './commands/release.js';
import { trace } from './commands/trace.js';
import { version } from './commands/version.js';
import { who } from './commands/who.js';
import { journalDiscard, journalList, journalRetry, journalShow } from './resources/journal.js';
import { nodePorts, podsList } from './resources/pods.js';
import { describe, get } from './resources/reading.js';
import { apply, create, label, patch, remove, replace, validate } from './resources/writing.js';

/** All commands of podwirectl, in the order of the help. */
export const VERBS: readonly Verb[] = [
  get,
  describe,
  create,
  apply,
  replace,
  patch,
  label,
  validate,
  remove,
  ipamShow,
  ipamCheck,
  ipamAssign,
  ipamRelease,
  ipamConfigure,
  ipamSplit,
  leases,
  leasesReturn,
  who,
  history,
  events,
  explain,
  policyExplain,
  policyList,
  policyStatus,
  policyDrops,
  audit,
  releaseAddress,
  releaseAttachment,
  attributesSet,
  attributesSwap,
  nodeStatus,
  nodeReady,
  nodePorts,
  latency,
  trace,
  podsList,
  podsCheck,
  podsRepair,
  gc,
  journalList,
  journalShow,
  journalRetry,
  journalDiscard,
  certificatesCreate,
  certificatesRevoke,
  version,
  completion,
];
