import type { Verb } from '../command-line/verb.js';
import { attributesSet } from './attributes-set.js';
import { attributesSwap } from './attributes-swap.js';
import { audit } from './audit.js';
import { blocksList } from './blocks-list.js';
import { configGet } from './config-get.js';
import { configSet } from './config-set.js';
import { endpointsList } from './endpoints-list.js';
import { explain } from './explain.js';
import { gc } from './gc.js';
import { history } from './history.js';
import { journalDiscard } from './journal-discard.js';
import { journalList } from './journal-list.js';
import { journalRetry } from './journal-retry.js';
import { journalShow } from './journal-show.js';
import { nodeReady } from './node-ready.js';
import { nodeStatus } from './node-status.js';
import { nodesDelete } from './nodes-delete.js';
import { nodesList } from './nodes-list.js';
import { nodesShow } from './nodes-show.js';
import { podsCheck } from './pods-check.js';
import { podsList } from './pods-list.js';
import { podsRepair } from './pods-repair.js';
import { policiesDelete } from './policies-delete.js';
import { policiesList } from './policies-list.js';
import { policiesSet } from './policies-set.js';
import { policiesShow } from './policies-show.js';
import { poolsCreate } from './pools-create.js';
import { poolsDelete } from './pools-delete.js';
import { poolsDrain } from './pools-drain.js';
import { poolsList } from './pools-list.js';
import { poolsShow } from './pools-show.js';
import { poolsSplit } from './pools-split.js';
import { poolsUpdate } from './pools-update.js';
import { releaseAddress } from './release-address.js';
import { releaseAttachment } from './release-attachment.js';
import { releaseHandle } from './release-handle.js';
import { reservationsCreate } from './reservations-create.js';
import { reservationsDelete } from './reservations-delete.js';
import { reservationsList } from './reservations-list.js';
import { reservationsShow } from './reservations-show.js';
import { reservationsUpdate } from './reservations-update.js';
import { utilisation } from './utilisation.js';
import { who } from './who.js';

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
