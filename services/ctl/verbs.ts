import type { Verb } from './command-line/verb.js';
import { attributesSet } from './commands/attributes-set.js';
import { attributesSwap } from './commands/attributes-swap.js';
import { audit } from './commands/audit.js';
import { configGet } from './commands/config-get.js';
import { explain } from './commands/explain.js';
import { gc } from './commands/gc.js';
import { history } from './commands/history.js';
import { journalDiscard } from './commands/journal-discard.js';
import { journalList } from './commands/journal-list.js';
import { journalRetry } from './commands/journal-retry.js';
import { journalShow } from './commands/journal-show.js';
import { nodeReady } from './commands/node-ready.js';
import { nodeStatus } from './commands/node.js';
import { nodesDelete } from './commands/nodes-delete.js';
import { nodesList } from './commands/nodes-list.js';
import { podsRepair } from './commands/pods-repair.js';
import { podsCheck } from './commands/pods.js';
import { policiesDelete } from './commands/policies-delete.js';
import { policiesList } from './commands/policies-list.js';
import { policiesSet } from './commands/policies-set.js';
import { policiesShow } from './commands/policies-show.js';
import { poolsCreate } from './commands/pools-create.js';
import { poolsDelete } from './commands/pools-delete.js';
import { poolsDrain } from './commands/pools-drain.js';
import { poolsShow } from './commands/pools-show.js';
import { poolsSplit } from './commands/pools-split.js';
import { poolsUpdate } from './commands/pools-update.js';
import { releaseAttachment } from './commands/release-attachment.js';
import { releaseHandle } from './commands/release-handle.js';
import { releaseAddress } from './commands/release.js';
import { reservationsCreate } from './commands/reservations-create.js';
import { reservationsDelete } from './commands/reservations-delete.js';
import { reservationsList } from './commands/reservations-list.js';
import { reservationsShow } from './commands/reservations-show.js';
import { reservationsUpdate } from './commands/reservations-update.js';
import { utilisation } from './commands/utilisation.js';
import { who } from './commands/who.js';
import { blocksList } from './resources/blocks.js';
import { configSet } from './resources/config.js';
import { endpointsList } from './resources/endpoints.js';
import { nodesShow } from './resources/nodes.js';
import { podsList } from './resources/pods.js';
import { poolsList } from './resources/pools.js';

/** All that podwirectl can be told to do, in the order in which the help has it. */
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
  podsList,
  podsCheck,
  podsRepair,
  gc,
  journalList,
  journalShow,
  journalRetry,
  journalDiscard,
];
