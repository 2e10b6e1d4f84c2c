import { certificatesCreate } from './certificates/create.js';
import { certificatesEnrol } from './certificates/enrol.js';
import type { Verb } from './command-line/verb.js';
import { attributesSet, attributesSwap } from './commands/attributes.js';
import { audit } from './commands/audit.js';
import { explain } from './commands/explain.js';
import { gc } from './commands/gc.js';
import { history } from './commands/history.js';
import { latency } from './commands/latency.js';
import { nodeReady, nodeStatus } from './commands/node.js';
import { podsCheck, podsRepair } from './commands/pods.js';
import { releaseAddress, releaseAttachment, releaseHandle } from './commands/release.js';
import { trace } from './commands/trace.js';
import { utilisation } from './commands/utilisation.js';
import { who } from './commands/who.js';
import { blocksList } from './resources/blocks.js';
import { configGet, configSet } from './resources/config.js';
import { endpointsList } from './resources/endpoints.js';
import { journalDiscard, journalList, journalRetry, journalShow } from './resources/journal.js';
import { nodesDelete, nodesList, nodesShow } from './resources/nodes.js';
import { podsList } from './resources/pods.js';
import { policiesDelete, policiesList, policiesSet, policiesShow } from './resources/policies.js';
import { poolsDelete, poolsDrain } from './resources/pool-deletion.js';
import { poolsCreate, poolsList, poolsShow, poolsSplit, poolsUpdate } from './resources/pools.js';
import {
  reservationsCreate,
  reservationsDelete,
  reservationsList,
  reservationsShow,
  reservationsUpdate,
} from './resources/reservations.js';

/** All commands of podwirectl, in the order of the help. */
export const VERBS: readonly Verb[] = [
  poolsList,
  poolsShow,
  poolsCreate,
  poolsUpdate,
  poolsDrain,
  poolsDelete,
  poolsSplit,
  blocksList,
  utilisation,
  nodesList,
  nodesShow,
  nodesDelete,
  endpointsList,
  who,
  history,
  explain,
  audit,
  releaseAddress,
  releaseAttachment,
  releaseHandle,
  attributesSet,
  attributesSwap,
  configGet,
  configSet,
  reservationsList,
  reservationsShow,
  reservationsCreate,
  reservationsUpdate,
  reservationsDelete,
  policiesList,
  policiesShow,
  policiesSet,
  policiesDelete,
  nodeStatus,
  nodeReady,
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
  certificatesEnrol,
];
