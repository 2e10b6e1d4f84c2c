import type { Case, Occasion } from '../case.js';
import { attachmentCases } from './attachment.js';
import { checkCases } from './check.js';
import { collectionCases } from './collection.js';
import { configurationCases } from './configuration.js';
import { delegateCases } from './delegate.js';
import { environmentCases } from './environment.js';
import { matrix } from './matrix.js';
import { portMappingCases } from './port-mappings.js';
import { removalCases } from './removal.js';
import { stormCases } from './storm.js';
import { suddenDeathCases } from './sudden-death.js';
import { versionCases } from './version.js';

/** Every case for a plugin. */
export function casesFor(occasion: Occasion): readonly Case[] {
  return [
    versionCases,
    environmentCases,
    configurationCases,
    matrix,
    delegateCases,
    attachmentCases,
    removalCases,
    checkCases,
    collectionCases,
    portMappingCases,
    suddenDeathCases,
    stormCases,
  ].flatMap((part) => part(occasion));
}
